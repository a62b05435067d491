// What every page does: keyboard, copying, announcing new commits, progress.
const byId = (id) => document.getElementById(id);
const POLL_MS = 4000;

/** Show progress while something takes longer than a moment. */
let waiting = 0;
export function progress(started) {
  waiting = Math.max(0, waiting + (started ? 1 : -1));
  const show = () => { byId("progress").hidden = waiting === 0; };
  if (started) setTimeout(show, 400); else show();
}

/** Fetch, with progress and an error that has the server's words. */
export async function request(url, options) {
  progress(true);
  try {
    const response = await fetch(url, options);
    if (!response.ok) {
      const text = await response.text();
      let words = text;
      try { words = JSON.parse(text).error; } catch { /* a page */ }
      throw new Error(words || `status ${response.status}`);
    }
    return response;
  } finally { progress(false); }
}

/** Replace the live parts of this page by those of another URL. */
let swaps = 0;
export async function swap(url, names) {
  const mine = ++swaps;
  const text = await (await request(url)).text();
  if (mine !== swaps) return;
  const fresh = new DOMParser().parseFromString(text, "text/html");
  for (const part of document.querySelectorAll("[data-live]")) {
    if (names && !names.includes(part.dataset.live)) continue;
    const other = fresh.querySelector(`[data-live="${part.dataset.live}"]`);
    if (other) part.replaceChildren(...other.childNodes);
  }
}

function pollBranch() {
  const { branch, snapshot } = document.body.dataset;
  if (!branch) return;
  const url = `/api/refs?branch=${encodeURIComponent(branch)}&since=${snapshot}`;
  setInterval(async () => {
    if (document.hidden) return;
    let found;
    try { found = await (await fetch(url)).json(); } catch { return; }
    if (!found.new) return;
    const link = document.createElement("a");
    link.href = location.href;
    link.textContent = "show";
    const note = byId("moved");
    note.replaceChildren(`${branch} moved: ${found.new} new commit${found.new === 1 ? "" : "s"} · `, link);
    note.hidden = false;
  }, POLL_MS);
}

async function copy(text, button) {
  try { await navigator.clipboard.writeText(text); } catch {
    const area = document.createElement("textarea");
    area.value = text;
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  }
  if (button) { button.textContent = "Copied"; setTimeout(() => { button.textContent = "Copy"; }, 1500); }
}

/** Open another version at the positions that this page shows now. */
function keepView(link) {
  const names = link.dataset.view.split(" "), kept = new URLSearchParams();
  for (const [name, value] of new URLSearchParams(location.search)) if (name.startsWith("i.") || names.includes(name)) kept.append(name, value);
  // Colours mean the same values in both versions.
  const { scale } = document.body.dataset;
  if (scale && names.includes("scale") && !kept.has("range")) kept.set("kept", scale);
  link.search = kept.toString();
}

function permalink() {
  const link = byId("permalink");
  return link && new URL(link.getAttribute("href") + location.search, location.href).href;
}

const keys = {
  "/": () => { const found = document.querySelector("#file, a.array"); if (found) found.focus(); else location.href = "/tree/main"; },
  "?": () => byId("help").showModal(),
  "y": () => { const url = permalink(); if (url) { copy(url); history.replaceState(null, "", url); } },
  "[": () => { const at = document.querySelector(".rail li[aria-current] + li a") || byId("older"); if (at) at.click(); },
  "]": () => { const at = document.querySelector(".rail li[aria-current]")?.previousElementSibling?.querySelector("a"); if (at) at.click(); else if (byId("newest")) byId("newest").click(); else if (byId("older")) history.back(); },
  "d": () => {
    const { snapshot } = document.body.dataset;
    const rest = location.pathname.split("/").slice(3).join("/");
    if (snapshot && /^\/(array|tree)\//.test(location.pathname)) location.href = `/compare/${snapshot}~1...${snapshot}/${rest}${location.search}`;
  },
};

document.addEventListener("keydown", (event) => {
  const typing = event.target.closest("input[type=search], input[type=text], select, textarea");
  if (typing || event.ctrlKey || event.metaKey || event.altKey || !keys[event.key]) return;
  event.preventDefault();
  keys[event.key]();
});
document.addEventListener("click", (event) => {
  const button = event.target.closest(".copy");
  if (button) copy(button.parentElement.querySelector("code").textContent, button);
  for (const menu of document.querySelectorAll("details.menu[open]")) if (!menu.contains(event.target)) menu.open = false;
  const link = event.target.closest("a[href]");
  if (link?.dataset.view !== undefined) keepView(link);
  if (link && link.origin === location.origin && !event.ctrlKey && !event.metaKey && event.button === 0) progress(true);
});
addEventListener("pageshow", (event) => { if (event.persisted) { waiting = 0; byId("progress").hidden = true; } });
byId("help-button").addEventListener("click", keys["?"]);
byId("help-close").addEventListener("click", () => byId("help").close());
const ticks = [...document.querySelectorAll("[data-compare]")];
if (ticks.length) {
  const lines = [...document.querySelectorAll(".compare-two")], words = lines.map((line) => line.textContent);
  for (const line of lines) line.hidden = false;
  for (const each of ticks) {
    each.hidden = false;
    each.addEventListener("change", () => {
      const chosen = ticks.filter((one) => one.checked);
      if (chosen.length > 2) chosen.find((one) => one !== each).checked = false;
      const [before, after] = ticks.filter((one) => one.checked).map((one) => one.dataset).sort((one, other) => one.at - other.at);
      const encoded = (one) => encodeURIComponent(one.compare).replaceAll(".", "%2E");
      lines.forEach((line, at) => {
        if (!after) line.replaceChildren(words[at]);
        else line.replaceChildren(Object.assign(document.createElement("a"), { href: `/compare/${encoded(before)}...${encoded(after)}`, textContent: `Compare ${before.name} with ${after.name}` }));
      });
    });
  }
}
const filter = byId("file");
if (filter) {
  byId("filter").hidden = false;
  filter.addEventListener("change", () => {
    const wanted = new URLSearchParams(location.search);
    wanted.delete("page");
    wanted.set("file", filter.value);
    location.search = wanted.toString();
  });
}
pollBranch();
