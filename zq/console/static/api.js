// SPDX-License-Identifier: Apache-2.0
// Requests of the HTTP interface, by addresses relative to the document: it may lie behind any path of a proxy.

import { credentials } from "./session.js";

const BASE = new URL("../v2/", document.baseURI);
const PATCH = "application/openstack-messaging-v2.0-json-patch";
const WITHIN = 30000;

/** Whose queues are asked for, and what is called when a credential is wanted. */
export const asking = { project: "", wanted: (_challenge) => {} };

/** What the server refused, with its own words. `status` 0: it did not answer. */
export class Refused extends Error {
  constructor(status, said, headers) {
    super(said.description || said.title || `Status ${status}`);
    this.status = status;
    this.title = said.title || `Status ${status}`;
    this.description = said.description || "";
    this.request = headers?.get("X-OpenStack-Request-ID") ?? "";
    this.retry = Number(headers?.get("Retry-After")) || 0;
    this.challenge = headers?.get("WWW-Authenticate") ?? "";
  }

  /** Whether it may pass by itself: the server or its store is away. */
  get passing() {
    return this.status === 0 || this.status === 429 || this.status >= 500;
  }
}

/**
 * One request. Throws Refused.
 * @param {string} method
 * @param {string} path below /v2/, its names already encoded
 * @param {{query?: object, body?: string, key?: string, keepalive?: boolean, project?: string, signal?: AbortSignal}} [more]
 * @returns {Promise<{status: number, text: string, headers: Headers}>}
 */
export async function call(method, path, more = {}) {
  const within = more.keepalive ? [] : [AbortSignal.timeout(WITHIN)];
  const signals = [...within, more.signal].filter(Boolean);
  const answer = await sent(method, address(path, more.query), { ...more, signal: AbortSignal.any(signals) });
  const text = await textOf(answer);
  if (answer.ok) return { status: answer.status, text, headers: answer.headers };
  throw refusal(answer, text);
}

/**
 * What reads the texts of an answer that goes on without an end. Throws Refused.
 * @param {string} path
 * @param {{query: object, last: string, signal: AbortSignal}} more `last`: the event behind which it begins, "" = now
 * @returns {Promise<ReadableStreamDefaultReader<string>>}
 */
export async function streamed(path, { query, last, signal }) {
  const answer = await sent("GET", address(path, query), { accept: "text/event-stream", last, signal });
  if (answer.ok) return answer.body.pipeThrough(new TextDecoderStream()).getReader();
  throw refusal(answer, await textOf(answer));
}

async function textOf(answer) {
  if (answer.type !== "opaqueredirect") return answer.text().catch(silence);
  const said = { title: "Sign in again", description: "A proxy requires you to sign in. Reload this page." };
  throw new Refused(0, said, null);
}

function refusal(answer, text) {
  const refused = new Refused(answer.status, saidIn(text), answer.headers);
  if (refused.status === 401) asking.wanted(refused.challenge);
  return refused;
}

/**
 * What a GET answers, with JavaScript's own numbers. Throws Refused.
 * @param {string} path
 * @param {object} [query]
 * @returns {Promise<any>}
 */
export async function get(path, query) {
  return JSON.parse((await call("GET", path, { query })).text);
}

/**
 * @param {string} queue
 * @param {string} [below] as "/stats"
 * @returns {string} its path
 */
export function queuePath(queue, below = "") {
  return `queues/${encodeURIComponent(queue)}${below}`;
}

/**
 * @param {string} topic
 * @param {string} [below] as "/stats"
 * @returns {string} its path
 */
export function topicPath(topic, below = "") {
  return `topics/${encodeURIComponent(topic)}${below}`;
}

/**
 * @param {import("./route.js").Route} route of a page of one queue or one topic
 * @param {string} [below] as "/stats"
 * @returns {string} the path of that queue or topic
 */
export function pathOf(route, below = "") {
  return route.topic ? topicPath(route.topic, below) : queuePath(route.queue, below);
}

function address(path, query = {}) {
  const found = new URL(path, BASE);
  const given = Object.entries(query).filter(([, value]) => value !== undefined && value !== "");
  // A comma that parts the values of a list is not encoded; one within a value is.
  const pairs = given.map(([name, value]) => `${name}=${[value].flat().map(encodeURIComponent).join(",")}`);
  found.search = pairs.join("&");
  return found;
}

async function sent(method, url, { body, key, keepalive, project = asking.project, accept = "application/json", last, signal }) {
  const headers = { Accept: accept, ...credentials() };
  if (project) headers["X-Project-ID"] = project;
  if (body !== undefined) headers["Content-Type"] = method === "PATCH" && !url.pathname.includes("/claims/") ? PATCH : "application/json";
  if (key) headers["Idempotency-Key"] = key;
  if (last) headers["Last-Event-ID"] = last;
  const common = { cache: "no-store", credentials: "same-origin", redirect: "manual", referrerPolicy: "no-referrer" };
  return fetch(url, { ...common, method, headers, body, keepalive, signal }).catch(silence);
}

function silence() {
  throw new Refused(0, { title: "The server does not answer", description: "The server is down or unreachable." }, null);
}

function saidIn(text) {
  try {
    const said = JSON.parse(text);
    return typeof said.error === "object" ? { title: said.error.title, description: said.error.message } : said;
  } catch {
    return { title: "", description: text.slice(0, 300) };
  }
}
