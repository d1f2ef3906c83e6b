/* Starts Python in a worker. */
import { loadPyodide } from "./pyodide/pyodide.mjs";

/* Return Python with `Page` already imported, from a memory snapshot that the build made. This takes only three seconds.
   A browser that cannot use the snapshot starts Python from the beginning. */
export async function startPython() {
  const bytes = async (name) => new Uint8Array(await (await fetch(name)).arrayBuffer());
  const indexURL = new URL("./pyodide/", import.meta.url).href;
  const started = fetch("start.bin.gz").then((found) => new Response(found.body.pipeThrough(new DecompressionStream("gzip"))).arrayBuffer());
  const [core, fabrics] = await Promise.all([bytes("core.zip"), bytes("fabrics.json")]);
  const filled = (py) => { py.FS.writeFile("/core.zip", core); py.FS.writeFile("/fabrics.json", fabrics); return py; };
  try {
    return filled(await loadPyodide({ indexURL, _loadSnapshot: new Uint8Array(await started) }));
  } catch (error) {
    const py = filled(await loadPyodide({ indexURL }));
    py.runPython(await (await fetch("start.py")).text());
    return py;
  }
}
