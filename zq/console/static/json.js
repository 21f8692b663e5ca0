// SPDX-License-Identifier: Apache-2.0
// JSON whose numbers stay as they were written: 9007199254740993 and 1.10 are shown, copied and posted digit by digit.

/** Whether this browser keeps the text of numbers; one that does not shows bodies as the server sent them. */
export const exact = typeof JSON.rawJSON === "function" && keepsSource();

function keepsSource() {
  let source = "";
  JSON.parse("1.10", (_key, value, context) => {
    source = context?.source;
    return value;
  });
  return source === "1.10";
}

/**
 * The value of a text, each number as an object that `write` writes as it was. Throws SyntaxError.
 * @param {string} text
 * @returns {unknown}
 */
export function parse(text) {
  return JSON.parse(text, (_key, value, context) =>
    exact && typeof value === "number" ? JSON.rawJSON(context.source) : value,
  );
}

/**
 * @param {unknown} value what `parse` returned, or a part of it
 * @param {number} [indent]
 * @returns {string}
 */
export function write(value, indent = 0) {
  return JSON.stringify(value, null, indent);
}

/**
 * Whether a value is a number of `parse`.
 * @param {unknown} value
 * @returns {boolean}
 */
export function isNumber(value) {
  return typeof value === "number" || (exact && JSON.isRawJSON(value));
}

/**
 * Whether a value has members of its own.
 * @param {unknown} value
 * @returns {boolean}
 */
export function isBranch(value) {
  return typeof value === "object" && value !== null && !isNumber(value);
}

/**
 * What is wrong with a text that is to be JSON; "" if nothing.
 * @param {string} text
 * @returns {string}
 */
export function fault(text) {
  if (text.trim() === "") return "The body is empty. Enter any JSON value.";
  try {
    JSON.parse(text);
  } catch (error) {
    return `The body is not valid JSON: ${error.message}.`;
  }
  return "";
}
