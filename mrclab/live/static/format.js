/* Functions for numbers, colours and elements, which all parts of the page use. */
"use strict";
const M = {};

/* A colour of the present theme. The browser is slow to compute a style, so each colour is stored. */
M.colours = { theme: null, known: new Map() };
M.colour = (name) => {
  const { theme } = document.documentElement.dataset;
  if (M.colours.theme !== theme) M.colours = { theme, known: new Map() };
  const { known } = M.colours;
  if (!known.has(name)) known.set(name, getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim());
  return known.get(name);
};

/* Set the text of an element only if the text differs, because each change of the page takes time. */
M.text = (node, text) => { if (node.textContent !== text) node.textContent = text; };

M.rate = (bps) =>
  bps >= 1e9 ? `${(bps / 1e9).toFixed(2)} Gbit/s`
  : bps >= 1e6 ? `${(bps / 1e6).toFixed(1)} Mbit/s`
  : bps >= 1e3 ? `${(bps / 1e3).toFixed(0)} kbit/s`
  : `${Math.round(bps)} bit/s`;

M.time = (us) =>
  us === null || us === undefined ? ""
  : us && us < 1 ? `${Math.round(1000 * us)} ns`
  : us < 100 ? `${Number(us.toFixed(1))} µs`
  : us < 1000 ? `${Math.round(us)} µs`
  : us < 1e6 ? `${(us / 1e3).toFixed(us < 1e4 ? 2 : 1)} ms`
  : `${(us / 1e6).toFixed(2)} s`;

M.count = (n) => Math.round(n).toLocaleString("en-US");

M.times = (n) => (n === 1 ? "once" : n === 2 ? "twice" : `${n} times`);

/* el("p", {class: "soft"}, "text", child) returns a new element. Text is never parsed as HTML. */
M.el = (tag, attributes = {}, ...children) => {
  const svg = ["svg", "path", "line", "circle", "rect", "text", "g", "title"].includes(tag) && attributes.svg !== false;
  const node = svg ? document.createElementNS("http://www.w3.org/2000/svg", tag) : document.createElement(tag);
  for (const [key, value] of Object.entries(attributes)) {
    if (key === "svg") continue;
    if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else if (value === true) node.setAttribute(key, "");
    else if (value !== false && value !== null) node.setAttribute(key, value);
  }
  for (const child of children) if (child !== null && child !== undefined && child !== false) node.append(child);
  return node;
};

/* A font for a canvas. Its size grows with the screen, like the size of the page's text. */
M.font = (px) => `${Math.round(px * Math.max(1, parseFloat(getComputedStyle(document.body).fontSize) / 16))}px system-ui`;

M.by = (id) => document.getElementById(id);

/* Give a canvas the resolution of the screen. Return its context, width and height in CSS pixels. */
M.canvas = (canvas, height) => {
  const scale = window.devicePixelRatio || 1;
  const width = canvas.clientWidth || 600;
  const high = height || canvas.clientHeight || 150;
  if (canvas.width !== Math.round(width * scale) || canvas.height !== Math.round(high * scale)) {
    canvas.width = Math.round(width * scale);
    canvas.height = Math.round(high * scale);
    if (height) canvas.style.height = `${height}px`;
  }
  const context = canvas.getContext("2d");
  context.setTransform(scale, 0, 0, scale, 0, 0);
  context.clearRect(0, 0, width, high);
  return [context, width, high];
};

M.blend = (a, b, share) => {
  const part = (text, at) => parseInt(text.slice(at, at + 2), 16);
  const mix = [1, 3, 5].map((at) => Math.round(part(a, at) + (part(b, at) - part(a, at)) * share));
  return `rgb(${mix.join(",")})`;
};

M.EV = { UNKNOWN: 0, GOOD: 1, SKIP: 2, ASSUMED_BAD: 3, DENIED: 4 };
M.EV_NAMES = ["unknown", "good", "skip", "assumed bad, probing", "denied"];
