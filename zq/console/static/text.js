// SPDX-License-Identifier: Apache-2.0
// How figures, moments and the texts of strangers are written.

import { settings } from "./session.js";

// Characters that turn the direction of what stands beside them, and controls that a page does not show.
// eslint-disable-next-line no-control-regex
const HIDDEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u2069\ufeff]/g;
const UNITS = [[86400, "d"], [3600, "h"], [60, "min"]];

/**
 * A text of a stranger, with what cannot be seen in it written as an escape.
 * @param {unknown} text
 * @returns {string}
 */
export function visible(text) {
  return String(text).replace(HIDDEN, (found) => `\\u${found.charCodeAt(0).toString(16).padStart(4, "0")}`);
}

/**
 * @param {number | undefined} number
 * @returns {string} as 1,234,567; a dash where nothing is known
 */
export function count(number) {
  return number === undefined || number === null ? "–" : number.toLocaleString("en-US");
}

/**
 * @param {number | undefined} seconds
 * @returns {string} as 3.2 min
 */
export function age(seconds) {
  if (seconds === undefined || seconds === null) return "–";
  const [size, unit] = UNITS.find(([least]) => seconds >= least) ?? [1, "s"];
  const value = seconds / size;
  return `${size === 1 ? Math.floor(value) : value.toFixed(value < 9.95 ? 1 : 0).replace(/\.0$/, "")} ${unit}`;
}

/**
 * @param {number | null} number messages in a second
 * @returns {string} as 12.4; a dash where nothing is known
 */
export function rate(number) {
  if (number === undefined || number === null) return "–";
  return number === 0 ? "0" : count(Number(number.toFixed(Math.abs(number) < 9.95 ? 1 : 0))).replace(/^-?0$/, "<0.1");
}

/**
 * @param {number} number
 * @param {boolean} atLeast whether it was counted up to a bound
 * @returns {string} as 10,000+
 */
export function bounded(number, atLeast) {
  return atLeast ? `${count(number)}+` : count(number);
}

/**
 * @param {{ready: number, delayed: number, claimed: number, at_least: boolean}} depth
 * @param {"ready" | "delayed" | "claimed"} state
 * @returns {string} how many messages are in it, as far as they were counted
 */
export function counted(depth, state) {
  const most = Math.max(depth.ready, depth.delayed, depth.claimed);
  return bounded(depth[state], depth.at_least && depth[state] === most);
}

/**
 * @param {number} number
 * @returns {string} as 12.5 KiB
 */
export function bytes(number) {
  return number < 1024 ? `${number} B` : `${(number / 1024).toFixed(1)} KiB`;
}

/**
 * @param {string | number} when a moment of the interface, or milliseconds
 * @returns {string} as 2026-01-31 12:00:00.123 UTC, or in local time if that was chosen
 */
export function moment(when) {
  const date = new Date(when);
  if (Number.isNaN(date.getTime())) return visible(when);
  if (settings.utc) return `${date.toISOString().replace("T", " ").slice(0, 23)} UTC`;
  const local = new Date(date.getTime() - date.getTimezoneOffset() * 60000);
  return `${local.toISOString().replace("T", " ").slice(0, 23)} local`;
}

/**
 * @param {number} when milliseconds
 * @returns {string} as 12:00:00
 */
export function clock(when) {
  return moment(when).slice(11, 19);
}

/**
 * @param {number} number
 * @param {string} noun
 * @returns {string} as 1 message, or 2 messages
 */
export function several(number, noun) {
  return `${count(number)} ${noun}${number === 1 ? "" : "s"}`;
}
