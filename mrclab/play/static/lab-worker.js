/* Checks and runs a student's files: Python in WebAssembly, with the labs' own checks. */
import { startPython } from "./start.js";

/* Python starts from the snapshot of the simulation's page. Then the labs' modules replace that page's modules. */
const python = (async () => {
  const here = (name) => new URL(name, import.meta.url).href;
  const py = await startPython();
  const [labs, wheels] = await Promise.all([fetch("labs.zip").then((found) => found.arrayBuffer()), fetch("wheels.json").then((found) => found.json())]);
  py.unpackArchive(labs, "zip", { extractDir: "/core" });
  await py.loadPackage(wheels.map((name) => here(`./wheels/${name}`)), { checkIntegrity: false, messageCallback: () => null });
  py.runPython("import os, sys; os.environ['MRCLAB_PURE'] = '1'; sys.path[:] = ['/core', *(p for p in sys.path if p != '/core.zip')]\nfor name in [name for name in sys.modules if name.split('.')[0] == 'mrclab']: del sys.modules[name]\nfrom pathlib import Path\nfrom mrclab.play.desk import Desk\ndesk = Desk(Path('/work'))");
  return py;
})();

onmessage = async ({ data: { id, what, number, files, name, when } }) => {
  try {
    const py = await python, desk = py.globals.get("desk");
    let answer;
    if (what === "check") answer = desk.check(number, files, (outcome) => postMessage({ outcome }));
    else if (what === "run") answer = desk.run(number, files, name);
    else { const found = desk.hand_in(number, files, when, "browser"); answer = found.toJs(); found.destroy(); }
    postMessage({ id, answer });
  } catch (error) {
    postMessage({ id, error: `this failed: ${String(error.message).trim().split("\n").pop()}` });
  }
};
