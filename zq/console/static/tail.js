// SPDX-License-Identifier: Apache-2.0
// What is published in topics, as it comes: by a stream, or where the server has none left, by requests for one topic.

import { call, get, topicPath } from "./api.js";
import { exact, parse, write } from "./json.js";
import { listen, settings } from "./session.js";
import { follow } from "./sse.js";

/** Lines that are kept; the oldest go. */
export const MOST = 1000;
// Characters of a body that are kept.
const KEPT = 4096;
// Seconds between the end of a stream, or of a request that waited, and the next one.
const AGAIN = 1;
// Seconds between two requests that do not wait.
const EVERY = 2;
// Seconds between two requests at most, however often they have failed.
const LONGEST = 15;
// Seconds for which a request waits, if the server lets it.
const WAIT = 20;
// Milliseconds after which a server that had no stream left, or no place for a request that waits, is asked again.
const BUSY = 30000;
// The position before all that a log has.
const START = "0";
const BEGUN_ANEW = "The log was deleted and created again. Messages of the new log follow.";

/**
 * @typedef {{key: number, sequence: string, topic: string, at: number, text: string, size: number, found: string,
 *   gap: string}} Line
 *   `at`: milliseconds; `text`: of the body, cut at 4,096 characters, and `size` all of them; `found`: the filter that the
 *   whole body has passed; `gap`: instead of a message, what is missing
 */

/**
 * One tail. `lines`: what is kept of the messages with the text `filter`; `came`: how many came, all of them; `position`:
 * the sequence up to which all has come; `fault`: why it has ended, or does not get on.
 * `mode`: how it asks: "stream", "waiting", "polling", or "connecting", "paused", "ended".
 */
export class Tail {
  /**
   * @param {{match: string, topic: string, filter: string}} what `topic`: the only one that is meant, "" if `match` may
   *   mean several
   * @param {() => void} told called after each change
   */
  constructor({ match, topic, filter }, told) {
    Object.assign(this, { match, topic, told, lines: [], came: 0, filter, position: "", fault: null });
    Object.assign(this, { mode: "paused", paused: false, made: 0, session: null, streamAt: 0, waitAt: 0, limits: null });
    this.wake = () => this.turned();
    document.addEventListener("visibilitychange", this.wake);
    this.silent = listen(this.wake);
    this.turned();
  }

  /** Ask for nothing any more. */
  end() {
    document.removeEventListener("visibilitychange", this.wake);
    this.silent();
    this.session?.abort();
  }

  /** @param {boolean} paused whether to ask for nothing until it goes on, behind what came last */
  pause(paused) {
    this.paused = paused;
    this.turned();
  }

  /** Forget the lines that are kept. */
  clear() {
    this.lines = [];
    this.told();
  }

  /** Begin or leave off, as this tail, the whole page and its tab are wanted to. */
  turned() {
    const on = !this.paused && settings.live && !document.hidden;
    if (on === (this.session !== null)) return;
    this.session?.abort();
    this.session = on ? new AbortController() : null;
    Object.assign(this, { streamAt: 0, waitAt: 0 });
    this.say(on ? "connecting" : "paused");
    if (on) this.run(this.session.signal);
  }

  say(mode, fault = null) {
    Object.assign(this, { mode, fault });
    this.told();
  }

  async run(signal) {
    let failures = 0;
    while (!signal.aborted) {
      let pause = LONGEST;
      try {
        pause = await this.once(signal);
        failures = 0;
      } catch (fault) {
        if (signal.aborted) return;
        if (fault.status === undefined) throw fault;
        if (!this.survives(fault)) return this.say("ended", fault);
        failures += 1;
        pause = Math.max(fault.retry, Math.min(LONGEST, 2 ** (failures - 2)));
        this.say("connecting", fault);
      }
      await nap(pause, signal);
    }
  }

  /** Whether to go on in spite of what was refused. */
  survives(fault) {
    if (fault.passing) return true;
    if (fault.status !== 400 || this.position === "" || this.position === START) return false;
    this.position = START;
    this.add({ gap: BEGUN_ANEW });
    return true;
  }

  /** One stream, until it ends, or one answer. Returns the seconds to the next one. */
  async once(signal) {
    if (Date.now() >= this.streamAt) {
      try {
        await this.stream(signal);
        return AGAIN;
      } catch (fault) {
        if (fault.title !== "Too many streams" || !this.topic) throw fault;
        this.streamAt = Date.now() + BUSY;
      }
    }
    return this.ask(signal);
  }

  stream(signal) {
    const query = this.topic ? {} : { match: this.match };
    const path = this.topic ? topicPath(this.topic, "/stream") : "stream";
    const told = (events, last) => {
      this.position = last;
      for (const { event, data } of events) this.heard(event, data);
      this.trim();
      if (this.mode === "stream") this.told();
      else this.say("stream");
    };
    return follow(path, { query, last: this.position, signal, told });
  }

  heard(event, data) {
    if (event === "gap") this.missed(parse(data));
    else if (event === "message") this.message(parse(data), data);
  }

  /** A page of the listing, for which the server waits if it has a place for that. */
  async ask(signal) {
    this.limits ??= await get("limits");
    this.position ||= await newest(this.topic);
    const { max_messages_per_page: limit, max_wait: longest } = this.limits;
    const wait = Date.now() >= this.waitAt ? Math.min(WAIT, longest) : 0;
    if (this.mode !== (wait ? "waiting" : "polling")) this.say(wait ? "waiting" : "polling");
    const query = { marker: this.position, limit, wait: wait || undefined, detailed: true };
    const { text, headers } = await call("GET", topicPath(this.topic, "/messages"), { query, signal });
    if (signal.aborted) return 0;
    const messages = this.page(text);
    if (headers.get("Retry-After")) this.waitAt = Date.now() + BUSY;
    return messages >= limit ? 0 : this.waitAt > Date.now() ? EVERY : AGAIN;
  }

  page(text) {
    const { messages, gap, links, position } = parse(text);
    const next = links[0] ? new URL(links[0].href, location.href).searchParams.get("marker") : write(position);
    if (gap) this.missed(gap);
    for (const message of messages) this.message({ ...message, topic: this.topic });
    this.position = next;
    this.trim();
    this.told();
    return messages.length;
  }

  message({ id, topic, age, body }, raw = write(body)) {
    const text = exact ? write(body) : raw;
    this.came += 1;
    if (!text.includes(this.filter) && !topic.includes(this.filter)) return;
    const at = Date.now() - Number(write(age)) * 1000;
    this.add({ sequence: id, topic, at, text: cut(text), size: text.length, found: this.filter });
  }

  /** Those of the kept lines that have the text `filter`, and all gaps. */
  shown() {
    const { filter } = this;
    if (!filter) return this.lines.slice();
    return this.lines.filter((line) => line.gap || line.found === filter || line.text.includes(filter) || line.topic.includes(filter));
  }

  /** What fell off behind the last message; the same one again is the same line. */
  missed({ after, resumes }) {
    const [first, last] = [BigInt(write(after)) + 1n, BigInt(write(resumes)) - 1n];
    const gap = `Up to ${(last - first + 1n).toLocaleString("en-US")} messages were removed before they were read (sequences ${first} to ${last}).`;
    if (this.lines.at(-1)?.gap !== gap) this.add({ gap });
  }

  add(line) {
    this.made += 1;
    this.lines.push({ key: this.made, sequence: "", topic: "", at: Date.now(), text: "", size: 0, found: "", gap: "", ...line });
  }

  trim() {
    if (this.lines.length > MOST) this.lines.splice(0, this.lines.length - MOST);
  }
}

/** The start of a text, by itself: a slice would keep the whole one in memory. */
function cut(text) {
  return text.length <= KEPT ? text : JSON.parse(JSON.stringify(text.slice(0, KEPT)));
}

/** The sequence of a topic's last message, or up to which the log has none. */
async function newest(topic) {
  const { text } = await call("GET", topicPath(topic, "/stats"), { query: { detailed: true } });
  const last = parse(text).messages.newest?.sequence;
  if (last !== undefined) return write(last);
  const page = await call("GET", topicPath(topic, "/messages"), { query: { detailed: true, limit: 1 } });
  return write(parse(page.text).position ?? 0);
}

function nap(seconds, signal) {
  return new Promise((resolve) => {
    const timer = setTimeout(resolve, seconds * 1000);
    signal.addEventListener("abort", () => resolve(clearTimeout(timer)), { once: true });
  });
}
