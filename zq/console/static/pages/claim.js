// SPDX-License-Identifier: Apache-2.0
// Claim by hand, for who develops a consumer: the messages are held as any consumer holds them.

import { useEffect, useRef, useState } from "preact/hooks";
import { call, queuePath } from "../api.js";
import { parse } from "../json.js";
import { useClock } from "../live.js";
import { Act, announce } from "../parts/act.js";
import { Body } from "../parts/body.js";
import { ask, given } from "../parts/confirm.js";
import { html } from "../parts/html.js";
import { Empty, Fault } from "../parts/states.js";
import { age, count, several, visible } from "../text.js";
import { NAME } from "./queueacts.js";

/** The tab. */
export function ByHand({ route, metadata }) {
  const [held, setHeld] = useState(null);
  const [state, setState] = useState({ fault: null, nothing: false });
  const claim = async (limit, ttl) => {
    try {
      const taken = await claimed(route.queue, limit, ttl);
      setHeld(taken);
      setState({ fault: null, nothing: taken === null });
    } catch (fault) {
      setState({ fault, nothing: false });
    }
  };
  const settled = (ids) => {
    const left = held.messages.filter((message) => !ids.includes(message.id));
    setHeld(left.length ? { ...held, messages: left } : null);
  };
  useRelease(route.queue, held);
  return html`<${Warning} most=${metadata?._max_claim_count} />
    ${!held && html`<${Ask} claim=${claim} />`}
    ${state.fault && html`<${Fault} fault=${state.fault} />`}
    ${state.nothing && !held && html`<${Empty} title="No ready messages"><p>The queue has no messages to claim now.</p></${Empty}>`}
    ${held && html`<${Held} route=${route} metadata=${metadata} held=${held} settled=${settled} ended=${() => setHeld(null)} />`}`;
}

function Warning({ most }) {
  return html`<p class="quiet">
    Claimed messages are hidden from other consumers${most > 0 && `. After ${several(most, "claim")}, a message becomes a dead letter`}.
    If you leave this tab, the messages are released.
  </p>`;
}

async function claimed(queue, limit, ttl) {
  const body = JSON.stringify({ ttl, grace: 60 });
  const answer = await call("POST", queuePath(queue, "/claims"), { query: { limit, detailed: true }, body });
  if (answer.status === 204) return null;
  const bodies = parse(answer.text).messages;
  const messages = JSON.parse(answer.text).messages.map((message, at) => ({ ...message, body: bodies[at].body }));
  const id = answer.headers.get("Location").split("/").at(-1);
  return { id, messages, ends: Date.now() + ttl * 1000 };
}

/** What is held when the page is left goes back. */
function useRelease(queue, held) {
  const last = useRef(null);
  last.current = held && queuePath(queue, `/claims/${encodeURIComponent(held.id)}`);
  useEffect(() => {
    const letGo = () => {
      if (last.current) call("DELETE", last.current, { keepalive: true }).catch(() => {});
      last.current = null;
    };
    addEventListener("pagehide", letGo);
    return () => {
      removeEventListener("pagehide", letGo);
      letGo();
    };
  }, [queue]);
}

function Ask({ claim }) {
  const [limit, setLimit] = useState("1");
  const [ttl, setTtl] = useState("60");
  const right = /^[1-9]\d?$/.test(limit) && /^\d+$/.test(ttl) && Number(ttl) >= 60;
  const send = (event) => {
    event.preventDefault();
    if (right) claim(Number(limit), Number(ttl));
  };
  return html`<form class="row bottom" onSubmit=${send}>
    <label class="field short"><span>Messages (1 to 99)</span><input type="text" inputmode="numeric" value=${limit} onInput=${(event) => setLimit(event.target.value)} /></label>
    <label class="field short"><span>Seconds (at least 60)</span><input type="text" inputmode="numeric" value=${ttl} onInput=${(event) => setTtl(event.target.value)} /></label>
    <${Act} rule="claims:create" kind="main" submit=${true} when=${right} why="Enter 1 to 99 messages and at least 60 seconds.">Claim</${Act}>
  </form>`;
}

function Held({ route, metadata, held, settled, ended }) {
  const now = useClock();
  const left = (held.ends - now) / 1000;
  const path = queuePath(route.queue, `/claims/${encodeURIComponent(held.id)}`);
  const settle = async (terms, ids, key) => {
    await call("POST", `${path}/settle`, { body: JSON.stringify(terms), key });
    settled(ids);
  };
  return html`<div class="title">
      <h2>${several(held.messages.length, "message")} claimed</h2>
      <div class="row">
        <span class=${left > 0 ? "countdown" : "countdown over"}>${left > 0 ? `expires in ${count(Math.ceil(left))} s` : "the claim has expired"}</span>
        <${Act} rule="claims:delete" onClick=${left > 0 ? () => release(path, ended) : ended}>${left > 0 ? "Release all" : "Close"}</${Act}>
      </div>
    </div>
    <p class="quiet">Claim <span class="id">${visible(held.id)}</span></p>
    ${held.messages.map((message) => html`<${One} key=${message.id} message=${message} metadata=${metadata} settle=${settle} />`)}`;
}

async function release(path, ended) {
  try {
    await call("DELETE", path);
    announce("The claim was released.");
    ended();
  } catch (fault) {
    announce(fault.message, true);
  }
}

function One({ message, metadata, settle }) {
  const { id } = message;
  const dead = metadata?._dead_letter_queue;
  const remove = {
    title: "Delete the message",
    verb: "Delete",
    body: html`<p>Deleting the message acknowledges it. You cannot undo this.</p>`,
    act: async (key) => {
      await settle({ delete: [id] }, [id], key);
      announce("The message was deleted.");
    },
  };
  return html`<article class="held" aria-label=${`Message ${id}`}>
    <p><span class="id">${visible(id)}</span> <span class="quiet">${several(message.claim_count ?? 0, "claim")}, ${age(message.age)} old</span></p>
    <${Body} value=${message.body} raw="" name=${`message-${id}.json`} />
    <div class="row">
      <${Act} rule="claims:update" kind="danger" onClick=${() => ask(remove)}>Delete…</${Act}>
      <${Act} rule="claims:update" onClick=${() => ask(releasing(id, settle))}>Release…</${Act}>
      <${Act} rule="claims:update" onClick=${() => ask(moving(id, settle))}>Move…</${Act}>
      <${Act} rule="claims:update" when=${Boolean(dead)} why="The queue has no _dead_letter_queue." onClick=${() => ask(burying(id, dead, settle))}>Bury…</${Act}>
    </div>
  </article>`;
}

function input(name, label, more) {
  return html`<label class="field"><span>${label}</span><input type="text" id=${name} autocomplete="off" ...${more} /></label>`;
}

function releasing(id, settle) {
  const act = async (key) => {
    const delay = given("release-delay");
    await settle({ release: [delay === "" ? { id } : { id, delay: Number(delay) }] }, [id], key);
    announce("The message was released.");
  };
  const body = input("release-delay", "Delay in seconds (empty: the queue's redelivery delay)", { inputmode: "numeric", pattern: "\\d*" });
  return { title: "Release the message", verb: "Release", harmless: true, body, act };
}

function moving(id, settle) {
  const act = async (key) => {
    const queue = given("move-queue");
    await settle({ move: [{ id, queue }] }, [id], key);
    announce(`The message was moved to ${queue}.`);
  };
  const body = input("move-queue", "Target queue (created if it does not exist)", { required: true, pattern: NAME });
  return { title: "Move the message", verb: "Move", harmless: true, body, act };
}

function burying(id, dead, settle) {
  const act = async (key) => {
    await settle({ bury: [{ id, reason: given("bury-reason") }] }, [id], key);
    announce(`The message was buried in ${visible(dead)}.`);
  };
  const body = input("bury-reason", "Reason", { required: true, maxlength: 1024 });
  return { title: `Bury the message in ${visible(dead)}`, verb: "Bury", body, act };
}
