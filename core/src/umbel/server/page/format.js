// Numbers as people read them.

const UNITS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];

export function bytes(n) {
  if (!Number.isFinite(n)) return "–";
  let unit = 0;
  let size = Math.abs(n);
  while (size >= 1024 && unit < UNITS.length - 1) {
    size /= 1024;
    unit += 1;
  }
  const digits = unit === 0 || size >= 100 ? 0 : 1;
  return `${n < 0 ? "−" : ""}${size.toFixed(digits)} ${UNITS[unit]}`;
}

export function number(n) {
  if (!Number.isFinite(n)) return "–";
  if (Number.isInteger(n)) return n.toLocaleString("en").replaceAll(",", "\u202f");
  const digits = Math.abs(n) >= 100 ? 0 : Math.abs(n) >= 10 ? 1 : 2;
  return n.toFixed(digits);
}

export function percent(part, whole) {
  if (!whole) return "–";
  const share = (100 * part) / whole;
  return `${share > 0 && share < 10 ? share.toFixed(1) : Math.round(share)} %`;
}

export function seconds(ms) {
  return ms < 9950 ? `${(ms / 1000).toFixed(1)} s` : `${Math.round(ms / 1000)} s`;
}

const BYTES = /(^|_)bytes($|_)|^memory(_(total|free|used|reserved|cached|budget|peak))?$|^hbm_/;
const HEAT = /temp(erature)?(_c)?$|_celsius$/;

/** What a device's key means: "bytes", "heat", "share" or "". */
export function meaning(key) {
  const plain = key.toLowerCase().replaceAll(" ", "_");
  if (HEAT.test(plain)) return "heat";
  if (BYTES.test(plain)) return "bytes";
  if (/_percent$|^utili[sz]ation/.test(plain)) return "share";
  return "";
}

export function status(key, value) {
  if (value === null || value === undefined) return "–";
  if (typeof value === "object") return JSON.stringify(value);
  if (typeof value !== "number") return String(value);
  const kind = meaning(key);
  if (kind === "heat") return `${number(value)} °C`;
  if (kind === "bytes") return bytes(value);
  if (kind === "share") return `${number(value)} %`;
  if (/_w(atts?)?$/.test(key)) return `${number(value)} W`;
  if (/_ms$/.test(key)) return `${number(value)} ms`;
  return number(value);
}

export function name(key) {
  const bare = key.replace(/_(c|bytes|percent|celsius|watts?|ms)$/, "");
  return bare.replaceAll("_", " ");
}

export function day(time) {
  const then = new Date(time);
  const now = new Date();
  const midnight = new Date(now.getFullYear(), now.getMonth(), now.getDate()).getTime();
  if (time >= midnight) return "Today";
  if (time >= midnight - 86400e3) return "Yesterday";
  if (time >= midnight - 6 * 86400e3) return "This week";
  return then.toLocaleDateString("en", { month: "long", year: "numeric" });
}
