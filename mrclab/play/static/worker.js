/* Runs the simulation: Python in WebAssembly, with the same core of mrclab as on any machine. */
import { startPython } from "./start.js";

const FRAME_MS = 1000 / 15;
const SHARE = 0.75;  // the share of the time between two page updates that Python may use

let page = null, paused = false, before = 0;

const python = startPython().then((py) => py.globals.get("page"));

function turn() {
  const now = performance.now();
  if (page && !paused) {
    const passed = Math.min(2 * FRAME_MS, before ? now - before : FRAME_MS);
    const end = now + SHARE * FRAME_MS;
    postMessage({ frame: page.turn(passed / 1000, () => performance.now() < end) });
  }
  before = now;
  setTimeout(turn, Math.max(4, FRAME_MS - (performance.now() - now)));
}

onmessage = async ({ data: { id, what, path, body } }) => {
  try {
    const found = await python;
    let answer;
    if (what === "open") { answer = found.open(body); page = JSON.parse(answer).error ? null : found; before = 0; }
    else if (what === "hold") { paused = body; answer = "{}"; }
    else if (what === "link") answer = found.link();
    else {
      answer = found.ask(path, body);
      if (!JSON.parse(answer).error && paused) postMessage({ frame: found.turn(0, () => true) });
    }
    postMessage({ id, answer });
  } catch (error) {
    postMessage({ id, answer: JSON.stringify({ error: `the simulation failed: ${error.message}` }) });
  }
};

setTimeout(turn, 0);
