// The picture of an array, its sliders, its cells and its chunks.
import { CATEGORIES, colourTable, draw, drawBar, paint } from "./draw.js";
import { request, swap } from "./page.js";

const byId = (id) => document.getElementById(id);
const config = JSON.parse(byId("view").textContent);
const query = new URLSearchParams(location.search);
const TILE = 32;
const KEPT = 24;
const SHARP = 0.6;

const encodePath = (path) => path.split("/").map(encodeURIComponent).join("/");
const span = (start, stop, step) => `${start}:${stop}:${step}`;
const number = (value) => {
  if (value === null || value === undefined) return "-";
  const short = Number(value.toPrecision(6)), size = Math.abs(short);
  return size >= 1e9 || (size > 0 && size < 1e-3) ? short.toExponential() : short.toString();
};

/** A number beside the colour scale, with as many digits as tell it from its neighbours. */
function scaleText(value, step) {
  const decimals = 1 + Math.max(0, Math.ceil(-Math.log10(step)));
  return step > 0 && decimals < 7 && Math.abs(value) < 1e6 ? String(Number(value.toFixed(decimals))) : number(value);
}

function tellError(error) { byId("readout").textContent = `Cannot show this: ${error.message}`; }

/** Remember the view in the URL. */
function keep(name, value) {
  if (value === null || value === "") query.delete(name); else query.set(name, value);
  const text = query.toString();
  history.replaceState(null, "", location.pathname + (text ? `?${text}` : ""));
}

/** A range of colours in the URL, such as 250,310. */
function parseRange(text) {
  const [low, high] = (text || "").split(",").map(Number);
  return Number.isFinite(low) && Number.isFinite(high) ? [low, high] : null;
}

/** Use the colours of the version before only until something else is shown. */
function dropKeptScale() {
  if (!state.kept) return;
  state.kept = null;
  keep("kept", null);
}

/** Choose the coarsest level of a pyramid that is sharp on this screen. */
function chooseSource() {
  const wanted = document.querySelector(".frame canvas").clientWidth * Math.min(window.devicePixelRatio || 1, 2) * SHARP;
  const columns = (each) => Math.ceil(each.shape[config.x] / each.step[1]);
  const chosen = config.sources.find((each) => columns(each) >= wanted) || config.sources.at(-1);
  for (const [axis, at] of [["y_ticks", 0], ["x_ticks", 1]]) config[axis] = config[axis].map(([place, text]) => [(place * config.every[at]) / chosen.every[at], text]);
  config.every = chosen.every;
  if (chosen.note) byId("level").textContent = `Drawn from ${chosen.note}.`;
  return chosen;
}

class Picture {
  constructor(frame, version) {
    this.frame = frame;
    this.version = version;
    this.blocks = new Map();
    this.tiles = new Map();
    this.canvas = frame.querySelector("canvas");
    this.rows = Math.ceil(config.shape[config.y] / config.every[0]);
    this.columns = Math.ceil(config.shape[config.x] / config.every[1]);
    this.mirror = { x: config.flip_x, y: config.flip_y };
  }

  index(axis, first, last, band) {
    return source.shape.map((size, each) => {
      if (each === config.y) return span(band[0], band[1], source.step[0]);
      if (each === config.x) return span(0, size, source.step[1]);
      if (each === axis) return `${first}:${last}`;
      return String(state.at[each]);
    }).join(",");
  }

  /** Load the block of steps that contains the current position; every later step in it is at hand. */
  async load(shift = 0) {
    const axis = state.axis;
    const steps = axis === null ? 1 : source.steps[axis] || 1;
    const block = axis === null ? 0 : Math.floor(state.at[axis] / steps) + shift;
    const first = block * steps;
    if (axis !== null && (first < 0 || first >= config.shape[axis])) return null;
    const others = state.at.map((at, each) => (each === axis ? "" : at)).join();
    const key = `${axis}/${block}/${others}`;
    if (!this.blocks.has(key)) {
      const last = axis === null ? 1 : Math.min(first + steps, config.shape[axis]);
      const parts = source.bands.map((band) => this.fetchBand(axis, first, last, band));
      this.blocks.set(key, Promise.all(parts));
      if (this.blocks.size > KEPT) this.blocks.delete(this.blocks.keys().next().value);
      this.blocks.get(key).catch(() => this.blocks.delete(key));
    }
    return { first, parts: await this.blocks.get(key) };
  }

  async fetchBand(axis, first, last, band) {
    const index = this.index(axis, first, last, band);
    const follow = axis === null ? "" : `&axis=${axis}`;
    const response = await request(`/api/window/${this.version}/${encodePath(source.path)}?index=${index}${follow}`);
    const meta = JSON.parse(response.headers.get("x-icefloe-meta"));
    return { meta, first: Math.ceil(band[0] / source.step[0]), codes: new Uint16Array(await response.arrayBuffer()) };
  }

  /** Pick the current step out of a block. */
  pick({ first, parts }) {
    const step = state.axis === null ? 0 : state.at[state.axis] - first;
    const stats = parts.map((part) => part.meta.steps[step]);
    const there = stats.filter((each) => each.low !== null);
    return {
      rows: this.rows,
      columns: this.columns,
      parts: parts.map((part) => {
        const cells = part.codes.length / (state.axis === null ? 1 : part.meta.steps.length);
        let codes = part.codes.subarray(step * cells, (step + 1) * cells);
        if (config.y > config.x) codes = transposed(codes, this.columns);
        return { first: part.first, low: part.meta.low, high: part.meta.high, codes };
      }),
      low: there.length ? Math.min(...there.map((each) => each.low)) : null,
      high: there.length ? Math.max(...there.map((each) => each.high)) : null,
      label: parts[0].meta.labels && parts[0].meta.labels[step],
    };
  }

  cellAt(event) {
    const box = this.canvas.getBoundingClientRect();
    let x = Math.floor(((event.clientX - box.left) / box.width) * this.columns);
    let y = Math.floor(((event.clientY - box.top) / box.height) * this.rows);
    x = Math.min(Math.max(x, 0), this.columns - 1);
    y = Math.min(Math.max(y, 0), this.rows - 1);
    return [this.mirror.y ? this.rows - 1 - y : y, this.mirror.x ? this.columns - 1 - x : x];
  }

  /** The exact value of a cell, from the server: colours are too coarse for numbers. */
  async value([row, column]) {
    const top = Math.floor(row / TILE) * TILE, left = Math.floor(column / TILE) * TILE;
    const [dy, dx] = config.every;
    const bottom = Math.min(top + TILE, this.rows), right = Math.min(left + TILE, this.columns);
    const index = config.shape.map((_, each) => {
      if (each === config.y) return span(top * dy, Math.min(bottom * dy, config.shape[each]), dy);
      if (each === config.x) return span(left * dx, Math.min(right * dx, config.shape[each]), dx);
      return String(state.at[each]);
    }).join(",");
    if (!this.tiles.has(index)) {
      if (this.tiles.size > 200) this.tiles.clear();
      this.tiles.set(index, fetch(`/api/tile/${this.version}/${encodePath(config.path)}?index=${index}`).then((response) => response.json()));
    }
    const tile = await this.tiles.get(index);
    if (tile.error) return tile.error;
    const width = config.y < config.x ? right - left : bottom - top;
    const at = config.y < config.x ? (row - top) * width + (column - left) : (column - left) * width + (row - top);
    const where = `${config.dims[config.y]} ${tile.labels[config.y][row - top]}, ${config.dims[config.x]} ${tile.labels[config.x][column - left]}`;
    const values = tile.values.map((each) => each[at] || "missing");
    if (values.length === 1) return `${where}: ${values[0]} ${tile.units}`;
    return `${where}: ${config.names[0]} ${values[0]}, ${config.names[1]} ${values[1]}, difference ${tile.difference?.[at] || "-"} ${tile.units}`;
  }
}

function transposed(codes, columns) {
  const rows = codes.length / columns;
  const found = new Uint16Array(codes.length);
  for (let column = 0; column < columns; column++) for (let row = 0; row < rows; row++) found[row * columns + column] = codes[column * rows + row];
  return found;
}

const state = { at: [...(config.at || [])], axis: null, locked: null, kept: null, cursor: null, mode: "difference" };
let pictures = [];
let coast = [];
let source = null;

function defaultColours() { return config.before && state.mode === "difference" ? "RdBu_r" : "viridis"; }

/** Whether the range of all values is known; a difference has a range of its own. */
function hasWholeScale() { return Boolean(config.scale) && !(config.before && state.mode === "difference"); }

async function show() {
  byId("whole").hidden = !hasWholeScale();
  const wanted = state.at.join();
  let picked;
  try {
    const loaded = await Promise.all(pictures.map((each) => each.load()));
    if (wanted !== state.at.join()) return;
    picked = loaded.map((each, at) => pictures[at].pick(each));
  } catch (error) {
    if (wanted !== state.at.join()) return;
    tellError(error);
    // A picture of another position would be misleading.
    for (const { canvas } of pictures) canvas.getContext("2d").clearRect(0, 0, canvas.width, canvas.height);
    return;
  }
  let low = Math.min(...picked.map((each) => each.low ?? Infinity)), high = Math.max(...picked.map((each) => each.high ?? -Infinity));
  if (!Number.isFinite(low)) [low, high] = [0, 1];
  if (hasWholeScale() && byId("scale").checked) [low, high] = config.scale;
  const name = query.get("colours") || defaultColours();
  if (state.locked || state.kept) [low, high] = state.locked || state.kept;
  else if (name === "RdBu_r") { const most = Math.max(Math.abs(low), Math.abs(high)) || 1; [low, high] = [-most, most]; }
  state.range = [low, high];
  if (!config.before) document.body.dataset.scale = [low, high].map((each) => Number(each.toPrecision(9))).join();
  byId("kept").hidden = !state.kept;
  const table = colourTable(name);
  drawBar(byId("bar"), table);
  document.querySelectorAll(".steps span").forEach((each, at, all) => {
    const step = (high - low) / (all.length - 1), last = at === all.length - 1;
    const text = step || last ? scaleText(low + step * at, step) : "";
    each.textContent = last ? `${text} ${config.units}` : text;
  });
  pictures.forEach((each, at) => {
    const ratio = config.kind === "map" ? each.rows / each.columns : Math.min(Math.max(each.rows / each.columns, 0.25), 0.75);
    draw(each.canvas, paint(picked[at], low, high, table, each.mirror), {
      rows: each.rows, columns: each.columns, mirror: each.mirror, aspect: ratio,
      coast: byId("coasts").checked ? thinned(coast, config.every) : [],
      outlines: (config.changed || []).map(([top, bottom, left, right]) => [top / config.every[0], bottom / config.every[0], left / config.every[1], right / config.every[1]]),
      cursor: state.cursor,
    });
  });
  if (state.axis !== null && picked[0].label !== undefined) setLabel(state.axis, picked[0].label);
  document.body.dataset.drawn = wanted;
  const kept = state.at.join();
  if (state.moved) setTimeout(() => { if (kept === state.at.join()) pictures.forEach((each) => { each.load(1).catch(() => {}); }); }, 0);
}

const thinned = (lines, [dy, dx]) => (dy === 1 && dx === 1 ? lines : lines.map((line) => line.map((each, at) => each / (at % 2 ? dy : dx))));

function setLabel(axis, label) {
  const output = byId(`label-${axis}`);
  if (output) output.textContent = `${label} (${state.at[axis]})`;
  const place = document.querySelector(`#go [data-axis="${axis}"]`);
  if (place && label !== "…") place.value = label;
}

let settle = null;
/** Bring the facts, the table and the snippets up to date once the sliders rest. */
function refreshFacts() {
  clearTimeout(settle);
  settle = setTimeout(() => swap(location.href).then(refreshOutlines).catch(tellError), 500);
}

async function refreshOutlines() {
  if (!config.before) return;
  const text = await (await request(location.href)).text();
  const fresh = new DOMParser().parseFromString(text, "text/html").getElementById("view");
  config.changed = JSON.parse(fresh.textContent).changed;
  show();
}

/** Write the ticks beside and below a picture. */
function drawAxes(picture) {
  const fill = (axis, ticks, title, size, mirrored, side) => {
    const spans = ticks.map(([place, text]) => {
      const span = document.createElement("span");
      span.textContent = text;
      const share = mirrored ? 1 - place / size : place / size;
      span.style[side] = `${100 * share}%`;
      return span;
    });
    if (title) spans.push(Object.assign(document.createElement("b"), { textContent: title }));
    axis.replaceChildren(...spans);
  };
  const isMap = config.kind === "map";
  const down = picture.frame.querySelector(".down"), across = picture.frame.querySelector(".across");
  fill(down, config.y_ticks, isMap ? "" : config.y_label, picture.rows, picture.mirror.y, "top");
  fill(across, config.x_ticks, isMap ? "" : config.x_label, picture.columns, picture.mirror.x, "left");
  const longest = Math.max(...config.y_ticks.map(([, text]) => text.length), 2);
  down.style.width = `${Math.min(longest, 20) * 0.62 + (isMap ? 0.6 : 2)}em`;
}

function frames() {
  const holder = document.querySelector(".frames");
  const first = holder.querySelector(".frame");
  holder.replaceChildren(first);
  first.querySelector("p")?.remove();
  if (!config.before) return [new Picture(first, config.version)];
  if (state.mode === "difference") return [new Picture(first, `${config.before}...${config.version}`)];
  const second = first.cloneNode(true);
  holder.append(second);
  [first, second].forEach((frame, at) => {
    const title = document.createElement("p");
    title.textContent = config.names[at];
    frame.prepend(title);
    frame.querySelector("canvas").setAttribute("aria-label", `${config.names[at]}: ${config.path}`);
  });
  return [new Picture(first, config.before), new Picture(second, config.version)];
}

function follow(picture) {
  let last = "";
  const tell = async (cell) => {
    const key = cell.join();
    last = key;
    const text = await picture.value(cell).catch((error) => error.message);
    if (last === key) byId("readout").textContent = text;
  };
  const choose = (cell) => {
    state.cursor = cell;
    const at = [cell[0] * config.every[0], cell[1] * config.every[1]];
    keep("cell", at.join());
    show();
    if (byId("cell")) swap(location.href, ["cell"]).catch((error) => { byId("readout").textContent = error.message; });
  };
  picture.canvas.onpointermove = (event) => tell(picture.cellAt(event));
  picture.canvas.onpointerleave = () => { last = ""; byId("readout").textContent = "\u00a0"; };
  picture.canvas.onclick = (event) => choose(picture.cellAt(event));
  picture.canvas.onkeydown = (event) => {
    const moves = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };
    if (event.key === "Enter" && state.cursor) { choose(state.cursor); return; }
    if (!moves[event.key]) return;
    event.preventDefault();
    const [dy, dx] = moves[event.key];
    const [y, x] = state.cursor || [Math.floor(picture.rows / 2), Math.floor(picture.columns / 2)];
    const sign = { y: picture.mirror.y ? -1 : 1, x: picture.mirror.x ? -1 : 1 };
    state.cursor = [Math.min(Math.max(y + dy * sign.y, 0), picture.rows - 1), Math.min(Math.max(x + dx * sign.x, 0), picture.columns - 1)];
    tell(state.cursor);
    show();
  };
}

function start() {
  source = chooseSource();
  const sliders = [...document.querySelectorAll("input[type=range]")];
  if (sliders.length) state.axis = Number(sliders[0].dataset.axis);
  for (const slider of sliders) slider.addEventListener("input", () => {
    state.axis = Number(slider.dataset.axis);
    state.at[state.axis] = Number(slider.value);
    state.moved = true;
    dropKeptScale();
    setLabel(state.axis, "…");
    keep(`i.${slider.dataset.name}`, slider.value);
    show();
    refreshFacts();
  });
  state.locked = parseRange(query.get("range"));
  if (!config.before) state.kept = parseRange(query.get("kept"));
  if (query.get("cell")) {
    const [row, column] = query.get("cell").split(",").map(Number);
    state.cursor = [Math.floor(row / config.every[0]), Math.floor(column / config.every[1])];
  }
  state.mode = query.get("show") === "side" ? "side" : "difference";
  const colours = byId("colours");
  colours.value = query.get("colours") || defaultColours();
  colours.addEventListener("change", () => { keep("colours", colours.value); show(); });
  const lock = byId("lock");
  const lockText = () => { lock.setAttribute("aria-pressed", String(Boolean(state.locked))); lock.textContent = state.locked ? "Unlock scale" : "Lock scale"; };
  lock.addEventListener("click", () => {
    dropKeptScale();
    state.locked = state.locked ? null : state.range;
    keep("range", state.locked ? state.locked.join() : null);
    lockText();
    show();
  });
  lockText();
  const scale = byId("scale");
  scale.checked = query.get("scale") !== "picture";
  scale.addEventListener("change", () => { state.locked = state.kept = null; keep("range", null); lockText(); keep("scale", scale.checked ? null : "picture"); show(); });
  byId("coasts").addEventListener("change", show);
  byId("coasts").closest("label").hidden = config.kind !== "map";
  const redo = () => { pictures = frames(); pictures.forEach((each) => { drawAxes(each); follow(each); }); show(); };
  for (const button of document.querySelectorAll("#modes button")) {
    button.setAttribute("aria-pressed", String(button.dataset.mode === state.mode));
    button.addEventListener("click", () => {
      state.mode = button.dataset.mode;
      keep("show", state.mode === "side" ? "side" : null);
      for (const each of document.querySelectorAll("#modes button")) each.setAttribute("aria-pressed", String(each === button));
      if (!query.get("colours")) colours.value = defaultColours();
      redo();
    });
  }
  redo();
  if (config.kind === "map") {
    const axes = `y=${encodeURIComponent(config.dims[config.y])}&x=${encodeURIComponent(config.dims[config.x])}`;
    request(`/api/coast/${config.version}/${encodePath(config.path)}?${axes}`).then((response) => response.json()).then((lines) => { coast = lines; show(); }).catch(() => {});
  }
  const go = byId("go");
  if (go) {
    go.hidden = false;
    go.addEventListener("submit", (event) => {
      event.preventDefault();
      const wanted = new URLSearchParams(query);
      for (const input of go.querySelectorAll("input")) if (input.value) wanted.set(input.name, input.value);
      location.assign(`${location.pathname}?${wanted}`);
    });
  }
  let resized = null;
  addEventListener("resize", () => { clearTimeout(resized); resized = setTimeout(show, 100); });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", show);
}

const bytes = (count) => { let unit = 0; while (count >= 1000 && unit < 4) { count /= 1000; unit++; } return `${unit ? count.toFixed(1) : count} ${["B", "kB", "MB", "GB", "TB"][unit]}`; };

/** The coordinates of the chunk, or of the first of several, in a cell of the map. */
function chunkAt(meta, row, column) {
  const coords = Array(meta.grid.length).fill(0);
  coords[meta.across] = Math.floor((column * meta.grid[meta.across]) / meta.columns);
  const others = meta.grid.map((_, axis) => axis).filter((axis) => axis !== meta.across);
  let rest = Math.floor((row * others.reduce((product, axis) => product * meta.grid[axis], 1)) / meta.rows);
  for (const axis of others.reverse()) { coords[axis] = rest % meta.grid[axis]; rest = Math.floor(rest / meta.grid[axis]); }
  return coords;
}

function legend(meta) {
  return meta.legend.map((name, at) => {
    const item = document.createElement("li");
    const sample = document.createElement("canvas");
    sample.width = sample.height = 12;
    const paintbrush = sample.getContext("2d");
    paintbrush.fillStyle = chunkColour(meta, at + 1);
    paintbrush.fillRect(0, 0, 12, 12);
    const label = meta.ids && meta.ids[at] ? Object.assign(document.createElement("a"), { href: `/commit/${meta.ids[at]}`, textContent: name || "(no message)" }) : name;
    const size = meta.sizes.length ? `, ${bytes(meta.sizes[at])}` : "";
    item.hidden = !meta.counts[at];
    item.append(sample, label, ` ${meta.counts[at]} ${meta.counts[at] === 1 ? "chunk" : "chunks"}${size}`);
    return item;
  });
}

const chunkColour = (meta, code) => meta.colours[code - 1] || (config.before ? ["#8a97a3", "#b4009e", "#009e73", "#d55e00"] : CATEGORIES)[(code - 1) % (config.before ? 4 : CATEGORIES.length)];

async function chunkMap(by) {
  const box = byId("chunk-map");
  const canvas = box.querySelector("canvas");
  let response;
  try { response = await request(`${box.dataset.url}?by=${by}`); } catch (error) { box.querySelector(".legend").textContent = error.message; box.hidden = false; return; }
  const meta = JSON.parse(response.headers.get("x-icefloe-meta"));
  const codes = new Uint8Array(await response.arrayBuffer());
  box.hidden = false;
  const size = Math.max(2, Math.min(16, Math.floor(Math.min(1000, box.parentElement.clientWidth - 2) / meta.columns), Math.floor(400 / meta.rows)));
  canvas.width = meta.columns * size;
  canvas.height = meta.rows * size;
  const context = canvas.getContext("2d");
  const gap = size > 4 ? 1 : 0;
  let cursor = null;
  const paintAll = () => {
    context.clearRect(0, 0, canvas.width, canvas.height);
    codes.forEach((code, at) => {
      if (!code) return;
      context.fillStyle = chunkColour(meta, code);
      context.fillRect((at % meta.columns) * size, Math.floor(at / meta.columns) * size, size - gap, size - gap);
    });
    if (!cursor) return;
    context.lineWidth = 2;
    context.strokeStyle = getComputedStyle(document.documentElement).getPropertyValue("--text");
    context.strokeRect(cursor[1] * size, cursor[0] * size, size - gap, size - gap);
  };
  paintAll();
  box.querySelector(".legend").replaceChildren(...legend(meta));
  for (const button of box.querySelectorAll("[data-by]")) button.setAttribute("aria-pressed", String(button.dataset.by === by));
  const dims = config.dims || [];
  const others = dims.filter((_, axis) => axis !== meta.across);
  const about = dims.length ? `${dims[meta.across]} across${others.length ? `, ${others.join(" × ")} down` : ""}` : "\u00a0";
  const tell = (row, column) => {
    const code = codes[row * meta.columns + column];
    const coords = chunkAt(meta, row, column);
    const from = coords.map((at, axis) => config.chunk_labels?.[axis] && `${dims[axis]} ${config.chunk_labels[axis][at]}`).filter(Boolean);
    byId("chunk-readout").textContent = `chunk ${coords.join(", ")}${from.length ? `, from ${from.join(", ")}` : ""}: ${code ? meta.legend[code - 1] : "not stored"}`;
  };
  byId("chunk-readout").textContent = about;
  const choose = (row, column) => {
    const coords = chunkAt(meta, row, column).join();
    if (config.before) {
      for (const name of [...query.keys()]) if (name.startsWith("i.")) query.delete(name);
      query.set("chunk", coords);
      location.search = query.toString();
      return;
    }
    keep("chunk", coords);
    swap(location.href, ["chunk"]).catch(() => {});
  };
  const cellAt = (event) => {
    const area = canvas.getBoundingClientRect();
    const within = (share, count) => Math.min(Math.max(Math.floor(share * count), 0), count - 1);
    return [within((event.clientY - area.top) / area.height, meta.rows), within((event.clientX - area.left) / area.width, meta.columns)];
  };
  canvas.onclick = (event) => choose(...cellAt(event));
  canvas.onpointermove = (event) => tell(...cellAt(event));
  canvas.onpointerleave = () => { byId("chunk-readout").textContent = about; };
  canvas.onkeydown = (event) => {
    const moves = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };
    if (event.key === "Enter" && cursor) choose(...cursor);
    if (!moves[event.key]) return;
    event.preventDefault();
    const [dy, dx] = moves[event.key], [y, x] = cursor || [0, 0];
    cursor = [Math.min(Math.max(y + dy, 0), meta.rows - 1), Math.min(Math.max(x + dx, 0), meta.columns - 1)];
    paintAll();
    tell(...cursor);
  };
}

const series = new Map();
/** Show the exact value of a curve under the pointer. */
document.addEventListener("pointermove", async (event) => {
  const chart = event.target.closest?.("svg[data-series]");
  if (!chart) return;
  const url = chart.dataset.series;
  if (!series.has(url)) series.set(url, request(url).then((response) => response.json()));
  const found = await series.get(url).catch(() => null);
  if (!found || !found.texts.length) return;
  const area = chart.getBoundingClientRect();
  const { width } = chart.viewBox.baseVal, left = Number(chart.dataset.left);
  const share = (((event.clientX - area.left) / area.width) * width - left) / (width - left - 12);
  const at = Math.min(Math.max(Math.round(share * (found.texts.length - 1)), 0), found.texts.length - 1);
  chart.nextElementSibling.textContent = `${found.labels[at]}: ${found.texts[at] || "missing"} ${found.units}`;
});

if (config.kind === "map" || config.kind === "heat") start();
const map = byId("chunk-map");
if (map) {
  for (const button of map.querySelectorAll("[data-by]")) button.addEventListener("click", () => { keep("by", button.dataset.by === "kind" ? null : button.dataset.by); chunkMap(button.dataset.by); });
  chunkMap(query.get("by") || "kind");
}
