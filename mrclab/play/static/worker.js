/* Runs the simulation: Python in WebAssembly, with the core of mrclab as it is on any machine. */
import { loadPyodide } from "./pyodide/pyodide.mjs";

const FRAME_MS = 1000 / 15;
const SHARE = 0.75;  // of the time between two frames that Python may take

let page = null, paused = false, before = 0;

/* Python with the page imported, as the build left it in a snapshot of its memory: a second instead of many.
   A browser that cannot use the snapshot starts Python from the beginning. */
const python = (async () => {
  const bytes = async (name) => new Uint8Array(await (await fetch(name)).arrayBuffer());
  const indexURL = new URL("./pyodide/", import.meta.url).href;
  const started = fetch("start.bin.gz").then((found) => new Response(found.body.pipeThrough(new DecompressionStream("gzip"))).arrayBuffer());
  const [core, fabrics] = await Promise.all([bytes("core.zip"), bytes("fabrics.json")]);
  const filled = (py) => { py.FS.writeFile("/core.zip", core); py.FS.writeFile("/fabrics.json", fabrics); return py; };
  try {
    return filled(await loadPyodide({ indexURL, _loadSnapshot: new Uint8Array(await started) })).globals.get("page");
  } catch (error) {
    const py = filled(await loadPyodide({ indexURL }));
    py.runPython(await (await fetch("start.py")).text());
    return py.globals.get("page");
  }
})();

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
