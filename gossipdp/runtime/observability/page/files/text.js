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

/**
 * The names of one network by id, each with at most `most` letters. A longer name keeps the part in which it differs
 * from the name that is most like it. Names that look the same are given as the begins of their ids.
 */
export function shortened(names, most) {
  const whole = Array.from(names, ([id, name]) => [id, Array.from(printable(name))]);
  const parts = whole.map(([id, name]) => {
    const alike = whole.map(([other, letters]) => (other === id ? 0 : shared(name, letters)));
    return [id, part(name, Math.max(...alike), most)];
  });
  const same = (text) => parts.filter(([, each]) => each === text).length > 1;
  return new Map(parts.map(([id, text]) => [id, same(text) ? id.slice(0, 8) : text]));
}

/** How many letters two names have in common at their begin. */
function shared(one, other) {
  const at = one.findIndex((letter, index) => letter !== other[index]);
  return at < 0 ? one.length : at;
}

/** `most` letters of a name: its begin, or those up to the end of the word with the letter at `index`. */
function part(name, index, most) {
  if (name.length <= most) return name.join("");
  const rest = name.slice(index).findIndex((letter) => !/[\p{L}\p{N}]/u.test(letter));
  const end = Math.min(rest < 0 ? name.length : index + rest, index + most - 2);
  if (end < most) return `${name.slice(0, most - 1).join("")}…`;
  return end < name.length ? `…${name.slice(end - most + 2, end).join("")}…` : `…${name.slice(1 - most).join("")}`;
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
