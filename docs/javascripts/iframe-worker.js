// Browsers start no workers for pages that are opened from a folder. Run the search worker in a hidden frame there.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super()
      this.frame = document.createElement("iframe")
      this.frame.hidden = true
      this.frame.srcdoc = `<script>self.postMessage = data => parent.postMessage(data, "*")</script><script src="${url}"></script>`
      this.ready = new Promise(resolve => { this.frame.onload = resolve })
      window.addEventListener("message", event => {
        if (event.source !== this.frame.contentWindow) return
        const copy = new MessageEvent("message", { data: event.data })
        this.dispatchEvent(copy)
        if (this.onmessage) this.onmessage(copy)
      })
      document.body.append(this.frame)
    }

    postMessage(data) {
      // Not the method of the frame, which sends messages to this window.
      this.ready.then(() => window.postMessage.call(this.frame.contentWindow, data, "*"))
    }

    terminate() {
      this.frame.remove()
    }
  }
}
