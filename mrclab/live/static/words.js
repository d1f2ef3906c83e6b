/* Names in words, for people who see the fabric for the first time. */
"use strict";

/* "p1-t0-0:p1-t1-3" is "plane 1, rack 0 to spine 3": a place of the fabric in words. */
M.words = (where) => {
  const node = (name) => {
    const found = /^p(\d+)-(t0|t1)-(\d+)$/.exec(name);
    return found ? { plane: found[1], name: `${found[2] === "t0" ? "rack" : "spine"} ${found[3]}` } : { name };
  };
  const plane = /^p(\d+)$/.exec(where), port = /^(.+)-eth(\d+)$/.exec(where);
  if (plane) return `plane ${plane[1]}`;
  if (port) return `${port[1]}'s port to plane ${port[2]}`;
  if (!where.includes(":")) { const one = node(where); return one.plane === undefined ? where : `plane ${one.plane}, ${one.name}`; }
  const [a, b] = where.split(":").map(node);
  const of = b.plane === undefined ? a.plane : b.plane;
  return `${of === undefined ? "" : `plane ${of}, `}${a.name} to ${b.name}`;
};

/* How much slower than real time a simulation is: "50,000 times slower". */
M.slower = (pace) => `${M.count(1e9 / pace)} times slower than real`;
M.pace = (pace) => `${M.time(pace / 1000)} a second`;
