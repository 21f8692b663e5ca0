// SPDX-License-Identifier: Apache-2.0
// One message of a topic: its body and all that zq keeps of it.

import { useEffect, useState } from "preact/hooks";
import { asking, call, topicPath } from "../api.js";
import { parse, write } from "../json.js";
import { useClock } from "../live.js";
import { Act } from "../parts/act.js";
import { Body } from "../parts/body.js";
import { html } from "../parts/html.js";
import { Empty, Fault, Loading } from "../parts/states.js";
import { go, toTopic } from "../route.js";
import { age, moment, visible } from "../text.js";
import { draft } from "./post.js";

/** Beside the list, or in its place where there is no room. `back`: the address without it. */
export function Published({ topic, id, back }) {
  const [{ found, fault }, show] = useState({});
  const load = () => read(topic, id).then((message) => show({ found: message }), (refused) => show({ fault: refused }));
  useEffect(() => void load(), []);
  return html`<section class="message" aria-label="Message">
    <div class="title">
      <h2>Message</h2>
      <a class="button" data-close href=${back}>Close</a>
    </div>
    ${!found && !fault && html`<${Loading} />`}
    ${fault && (fault.status === 404 ? html`<${Gone} />` : html`<${Fault} fault=${fault} again=${load} />`)}
    ${found && html`<${Whole} topic=${topic} message=${found} />`}
  </section>`;
}

async function read(topic, id) {
  const { text } = await call("GET", topicPath(topic, `/messages/${encodeURIComponent(id)}`), { query: { detailed: true } });
  return { ...JSON.parse(text), body: parse(text).body, raw: text };
}

function Gone() {
  return html`<${Empty} title="It is not there any more"><p>It was purged, has expired, or has fallen off the end of the project's log.</p></${Empty}>`;
}

function Whole({ topic, message }) {
  const again = () => {
    Object.assign(draft, { path: topicPath(topic), text: write(message.body, 2) });
    go(toTopic(asking.project, topic, { tab: "publish" }));
  };
  return html`<${Facts} topic=${topic} message=${message} />
    <${Body} value=${message.body} raw=${message.raw} name=${`message-${message.id}.json`} />
    <div class="row"><${Act} rule="topics:publish" onClick=${again}>Publish again as new…</${Act}></div>`;
}

function Facts({ topic, message }) {
  const now = useClock();
  const since = (now - Date.parse(message.created)) / 1000;
  const rows = [
    ["Topic", html`<a href=${toTopic(asking.project, topic)}>${visible(topic)}</a>`],
    ["Sequence", message.id],
    ["Published", `${age(Math.max(0, since))} ago, ${moment(message.created)}`],
    ["Expires", `in ${age(Math.max(0, (Date.parse(message.expires) - now) / 1000))}, ${moment(message.expires)}`],
    ["Life (ttl)", age(message.ttl)],
    ["Checksum", message.checksum && visible(message.checksum)],
  ].filter(([, value]) => value !== undefined);
  return html`<dl class="facts">${rows.map(([name, value]) => html`<div key=${name}><dt>${name}</dt><dd>${value}</dd></div>`)}</dl>`;
}
