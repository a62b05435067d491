// Colours, and pictures of numbers on a canvas.
import { COLOUR_MAPS } from "./colours.js";

/** A table of 256 colours as little-endian RGBA. */
export function colourTable(name) {
  const text = COLOUR_MAPS[name] || COLOUR_MAPS.viridis;
  const stops = [];
  for (let at = 0; at < text.length; at += 6) stops.push([0, 2, 4].map((part) => parseInt(text.substr(at + part, 2), 16)));
  const table = new Uint32Array(256);
  for (let at = 0; at < 256; at++) {
    const place = (at / 255) * (stops.length - 1);
    const first = Math.min(Math.floor(place), stops.length - 2);
    const [red, green, blue] = [0, 1, 2].map((part) => Math.round(stops[first][part] + (stops[first + 1][part] - stops[first][part]) * (place - first)));
    table[at] = (255 << 24) | (blue << 16) | (green << 8) | red;
  }
  return table;
}

/** Turn codes (0 missing, 1 to 65535 from low to high) into an image of cells. */
export function paint(picture, low, high, table, mirror) {
  const { rows, columns, parts } = picture;
  const image = new ImageData(columns, rows);
  const pixels = new Uint32Array(image.data.buffer);
  const span = high > low ? 255 / (high - low) : 0;
  for (const part of parts) {
    const scale = ((part.high - part.low) / 65534) * span;
    const start = span ? (part.low - low) * span : 127;
    let at = part.first * columns;
    for (let cell = 0; cell < part.codes.length; cell++, at++) {
      const code = part.codes[cell];
      if (!code) continue;
      const shade = start + (code - 1) * scale;
      const row = Math.floor(at / columns), column = at - row * columns;
      const y = mirror.y ? rows - 1 - row : row, x = mirror.x ? columns - 1 - column : column;
      pixels[y * columns + x] = table[shade < 0 ? 0 : shade > 255 ? 255 : shade | 0];
    }
  }
  return image;
}

const scratch = document.createElement("canvas");

/** Draw an image of cells, coastlines, outlines of chunks and a cursor. */
export function draw(canvas, image, view) {
  const ratio = Math.min(window.devicePixelRatio || 1, 2);
  const width = canvas.clientWidth || 600;
  const height = Math.round(width * view.aspect);
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  canvas.style.height = `${height}px`;
  const context = canvas.getContext("2d");
  if (image) {
    scratch.width = image.width;
    scratch.height = image.height;
    scratch.getContext("2d").putImageData(image, 0, 0);
    context.imageSmoothingEnabled = false;
    context.drawImage(scratch, 0, 0, canvas.width, canvas.height);
  }
  const style = getComputedStyle(document.documentElement);
  context.setTransform(canvas.width / view.columns, 0, 0, canvas.height / view.rows, 0, 0);
  if (view.mirror.x) context.transform(-1, 0, 0, 1, view.columns, 0);
  if (view.mirror.y) context.transform(1, 0, 0, -1, 0, view.rows);
  const lines = new Path2D();
  for (const line of view.coast || []) {
    lines.moveTo(line[0], line[1]);
    for (let at = 2; at < line.length; at += 2) lines.lineTo(line[at], line[at + 1]);
  }
  const boxes = new Path2D();
  const inset = { x: (2.5 * ratio * view.columns) / canvas.width, y: (2.5 * ratio * view.rows) / canvas.height };
  for (const [top, bottom, left, right] of view.outlines || []) boxes.rect(left + inset.x, top + inset.y, right - left - 2 * inset.x, bottom - top - 2 * inset.y);
  const cursor = new Path2D();
  if (view.cursor) cursor.rect(view.cursor[1], view.cursor[0], 1, 1);
  const here = context.getTransform();
  const stroke = (path, colour, thick, dash) => {
    const scaled = new Path2D();
    scaled.addPath(path, here);
    context.resetTransform();
    context.setLineDash(dash);
    context.strokeStyle = colour;
    context.lineWidth = thick * ratio;
    context.stroke(scaled);
  };
  stroke(lines, "rgb(255 255 255 / 35%)", 2, []);
  stroke(lines, "#1d2730", 0.9, []);
  stroke(boxes, style.getPropertyValue("--ground"), 4, []);
  stroke(boxes, style.getPropertyValue("--mark"), 2.2, [7 * ratio, 4 * ratio]);
  stroke(cursor, style.getPropertyValue("--ground"), 5, []);
  stroke(cursor, style.getPropertyValue("--mark"), 2.5, []);
}

/** Draw a table of colours from left to right. */
export function drawBar(canvas, table) {
  const image = new ImageData(256, 1);
  new Uint32Array(image.data.buffer).set(table);
  canvas.getContext("2d").putImageData(image, 0, 0);
}

/** Colours of categories, apart from each other for most colour-blind readers; with patterns for more. */
export const CATEGORIES = ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#d55e00", "#56b4e9", "#f0e442", "#7f3c8d", "#11a579", "#80ba5a", "#e68310", "#999999"];
