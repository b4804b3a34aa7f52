// Numbers and elements as people read them. Text of peers only ever becomes textContent.

const PREFIXES = ["", "k", "M", "G", "T", "P"];

export function isKnown(value) {
  return value !== null && value !== undefined;
}

/** A number with three digits and a prefix, such as "1.21 M". */
export function quantity(value, unit = "") {
  if (!Number.isFinite(value)) return "–";
  let power = 0;
  while (Math.abs(value) >= 999.5 && power < PREFIXES.length - 1) {
    value /= 1000;
    power += 1;
  }
  const text = Number.isInteger(value) ? String(value) : value.toPrecision(3);
  return `${text} ${PREFIXES[power]}${unit}`.trimEnd();
}

/** Seconds as people say them: "12 s", "4 min", "3 h". */
export function spoken(seconds) {
  if (!Number.isFinite(seconds)) return "–";
  if (seconds < 120) return `${Math.round(seconds)} s`;
  if (seconds < 7200) return `${Math.round(seconds / 60)} min`;
  return seconds < 172800 ? `${Math.round(seconds / 3600)} h` : `${Math.round(seconds / 86400)} days`;
}

export function fixed(value, digits) {
  return Number.isFinite(value) ? value.toFixed(digits) : "–";
}

export function milliseconds(seconds) {
  return Number.isFinite(seconds) ? `${fixed(1000 * seconds, seconds < 0.01 ? 1 : 0)} ms` : "–";
}

/** A name without control or direction characters, at most `most` characters long. */
export function printable(name, most = 64) {
  const clean = String(name).replace(/[\p{Cc}\p{Cf}\p{Zl}\p{Zp}]/gu, "?");
  const letters = Array.from(clean);
  return letters.length > most ? `${letters.slice(0, most - 1).join("")}…` : clean;
}

/** A member's name with at most `most` characters: without its middle, since names of one network differ at their ends. */
export function named(name, most = 20) {
  const letters = Array.from(printable(name));
  const tail = Math.floor(most / 2);
  return letters.length > most ? `${letters.slice(0, most - tail - 1).join("")}…${letters.slice(-tail).join("")}` : letters.join("");
}

/** A live member that does not train is idle. */
export function stateOf(member) {
  return member.state === "alive" && member.trains === false ? "idle" : String(member.state);
}

/** A new element with text and attributes. */
export function element(tag, text = "", attributes = {}) {
  const made = document.createElement(tag);
  made.textContent = text;
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  return made;
}
