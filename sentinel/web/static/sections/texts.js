// Generated texts: repeated phrases marked, long ones collapsed, and the difference of two.
import { button, container, element, formatNumber } from "../dom.js";

const COLLAPSED_CHARS = 500;
const PHRASE_WORDS = 4;
const MIN_REPETITIONS = 3;
const MAX_DIFF_WORDS = 1500;

/**
 * A text with its repeated phrases marked; `limit` characters of it are shown at first.
 * @param {string} text
 * @param {string} className
 * @param {number} [limit]
 */
export function textElement(text, className, limit = COLLAPSED_CHARS) {
  const { pieces } = markRepetition(text);
  const node = element("div", "", `generated ${className}`.trim());
  const body = element("pre", "", "generated-text");
  const isLong = text.length > limit * 1.2;
  /** @param {boolean} isWhole */
  const show = (isWhole) => body.replaceChildren(...piecesUpTo(pieces, isWhole ? Infinity : limit).map(pieceElement));
  show(!isLong);
  node.append(body);
  if (!isLong) return node;
  const more = button(
    `Show all ${formatNumber(text.length)} characters`,
    () => {
      const isWhole = more.getAttribute("aria-expanded") !== "true";
      more.setAttribute("aria-expanded", String(isWhole));
      more.textContent = isWhole ? "Show less" : `Show all ${formatNumber(text.length)} characters`;
      show(isWhole);
    },
    "small quiet",
  );
  more.setAttribute("aria-expanded", "false");
  node.append(more);
  return node;
}

/** @param {TextPiece} piece */
function pieceElement({ text, isRepeated }) {
  return isRepeated ? element("mark", text) : document.createTextNode(text);
}

/**
 * @param {TextPiece[]} pieces
 * @param {number} limit
 * @returns {TextPiece[]}
 */
function piecesUpTo(pieces, limit) {
  const shown = [];
  let length = 0;
  for (const piece of pieces) {
    if (length + piece.text.length > limit) {
      return [...shown, { ...piece, text: `${piece.text.slice(0, limit - length)}…` }];
    }
    shown.push(piece);
    length += piece.text.length;
  }
  return shown;
}

/**
 * @param {string} text
 * @returns {string[]}
 */
function splitWords(text) {
  return text.match(/\s+|[\p{L}\p{N}_]+|[^\s\p{L}\p{N}_]/gsu) ?? [];
}

/**
 * The text in pieces: those in a phrase of four words that occurs three times are repeated.
 * `share` is the part of its words that are.
 * @param {string} text
 */
export function markRepetition(text) {
  const parts = splitWords(text);
  const words = parts.flatMap((part, index) => (part.trim() ? [{ word: part.toLowerCase(), index }] : []));
  const places = new Map();
  for (let start = 0; start + PHRASE_WORDS <= words.length; start++) {
    const phrase = words
      .slice(start, start + PHRASE_WORDS)
      .map(({ word }) => word)
      .join(" ");
    if (!/[\p{L}\p{N}]/u.test(phrase)) continue;
    if (!places.has(phrase)) places.set(phrase, []);
    places.get(phrase).push(start);
  }
  const repeated = new Set();
  for (const starts of places.values()) {
    if (starts.length < MIN_REPETITIONS) continue;
    for (const start of starts) for (let k = 0; k < PHRASE_WORDS; k++) repeated.add(start + k);
  }
  const marked = new Set();
  for (const number of repeated) {
    marked.add(words[number].index);
    // The space between two repeated words belongs to the phrase.
    if (repeated.has(number + 1)) for (let k = words[number].index + 1; k < words[number + 1].index; k++) marked.add(k);
  }
  /** @type {TextPiece[]} */
  const pieces = [];
  parts.forEach((part, index) => {
    const isRepeated = marked.has(index);
    const last = pieces[pieces.length - 1];
    if (last && last.isRepeated === isRepeated) last.text += part;
    else pieces.push({ text: part, isRepeated });
  });
  return { pieces, share: words.length ? repeated.size / words.length : 0 };
}

/**
 * Two elements that show what of `before` is not in `after` and the other way round.
 * @param {string} before
 * @param {string} after
 */
export function diffElements(before, after) {
  const [left, right] = [splitWords(before), splitWords(after)];
  if (left.length > MAX_DIFF_WORDS || right.length > MAX_DIFF_WORDS) {
    return [textElement(before, ""), textElement(after, "")];
  }
  const common = commonParts(left, right);
  return [
    diffSide(
      left,
      common.map(([index]) => index),
      "del",
    ),
    diffSide(
      right,
      common.map(([, index]) => index),
      "ins",
    ),
  ];
}

/**
 * @param {string[]} parts
 * @param {number[]} common
 * @param {"del" | "ins"} tag
 */
function diffSide(parts, common, tag) {
  const same = new Set(common);
  const body = element("pre", "", "generated-text");
  /** @type {string[]} */
  let run = [];
  let isSame = true;
  const flush = () => {
    if (run.length) body.append(isSame ? run.join("") : element(tag, run.join("")));
    run = [];
  };
  parts.forEach((part, index) => {
    // A space between two changed words is part of the change.
    const isCommon = same.has(index) && (part.trim() !== "" || isSame || same.has(index + 1));
    if (isCommon !== isSame) flush();
    isSame = isCommon;
    run.push(part);
  });
  flush();
  return container("div", "generated", body);
}

/**
 * Pairs of indices of the longest common subsequence.
 * @param {string[]} left
 * @param {string[]} right
 * @returns {[number, number][]}
 */
function commonParts(left, right) {
  const width = right.length + 1;
  const lengths = new Uint16Array((left.length + 1) * width);
  for (let i = left.length - 1; i >= 0; i--) {
    for (let j = right.length - 1; j >= 0; j--) {
      lengths[i * width + j] =
        left[i] === right[j]
          ? lengths[(i + 1) * width + j + 1] + 1
          : Math.max(lengths[(i + 1) * width + j], lengths[i * width + j + 1]);
    }
  }
  /** @type {[number, number][]} */
  const pairs = [];
  for (let i = 0, j = 0; i < left.length && j < right.length;) {
    if (left[i] === right[j]) pairs.push([i++, j++]);
    else if (lengths[(i + 1) * width + j] >= lengths[i * width + j + 1]) i++;
    else j++;
  }
  return pairs;
}
