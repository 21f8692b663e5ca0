// SPDX-License-Identifier: Apache-2.0
// The topics of a project with their rates, each with what the log has of it; and the tail of several.

import { useState } from "preact/hooks";
import { topicPath } from "../api.js";
import { useClock } from "../live.js";
import { Act } from "../parts/act.js";
import { useCounts } from "../parts/counts.js";
import { Counted, Head, Pages, Search, useFigured } from "../parts/figured.js";
import { html } from "../parts/html.js";
import { Empty, Stale, waiting } from "../parts/states.js";
import { age, count, rate, several, visible } from "../text.js";
import { at, go, toTopic } from "../route.js";
import { askToCreate, askToDelete, askToPurge } from "./queueacts.js";
import { Following } from "./tail.js";

const HOW = { usual: "name", size: 20, every: 10 };
const PATTERN = "(?!.*\\*{3})[A-Za-z0-9_.*\\-]{1,64}";

/** The page. */
export function Topics({ route }) {
  const { project, query } = route;
  const title = query.tail ? html`<p class="crumb"><a href=${at(project, "topics")}>Topics</a></p>` : "";
  return html`${title}
    <div class="title"><h1>${query.tail ? `Tail of ${visible(query.tail)}` : "Topics"}</h1><${Chooser} project=${project} match=${query.tail} /></div>
    ${query.tail ? html`<${Following} match=${query.tail} topic="" query=${query} href=${(other) => at(project, "topics", other)} />` : html`<${List} route=${route} />`}`;
}

function Chooser({ project, match = "**" }) {
  const [text, setText] = useState(match);
  const open = (event) => {
    event.preventDefault();
    go(at(project, "topics", { tail: text }));
  };
  return html`<form class="row" onSubmit=${open}>
    <label class="row"><span class="quiet">Topics that match</span>
      <input class="match" type="text" autocomplete="off" spellcheck=${false} required pattern=${PATTERN} title="** is all, news.* is news.eu, news.** is news.eu.de, too" value=${text} onInput=${(event) => setText(event.target.value)} />
    </label>
    <button type="submit">Tail</button>
  </form>`;
}

function List({ route }) {
  const list = useFigured(route, HOW);
  const counts = useCounts(list.rows.map(({ name }) => topicPath(name, "/stats")));
  const [chosen, setChosen] = useState([]);
  const selected = chosen.filter((one) => list.rows.some((row) => row.name === one));
  const gone = (names) => {
    list.drop(names);
    setChosen([]);
  };
  return html`<div class="row tools">
      <${Search} route=${route} noun="topic" />
      <${Act} rule="topics:create" kind="main" onClick=${() => askToCreate(route.project, "topic")}>Create a topic</${Act}>
      <${Selected} names=${selected} gone=${gone} /> <${Counted} list=${list} noun="topic" />
    </div>
    <${Stale} found=${list.found} />
    ${waiting(list.found) ?? html`<${Table} route=${route} list=${list} counts=${counts} chosen=${selected} choose=${setChosen} />`}`;
}

function Selected({ names, gone }) {
  if (!names.length) return null;
  return html`<span class="quiet">${several(names.length, "topic")} selected</span>
    <${Act} rule="topics:purge" onClick=${() => askToPurge(names, gone, "topic")}>Purge…</${Act}>
    <${Act} rule="topics:delete" kind="danger" onClick=${() => askToDelete(names, gone, "topic")}>Delete…</${Act}>`;
}

function Table({ route, list, counts, chosen, choose }) {
  const now = useClock();
  if (!list.rows.length) return html`<${Nothing} route=${route} />`;
  const row = (topic) => html`<${Row} key=${topic.name} route=${route} topic=${topic} seen=${counts.get(topicPath(topic.name, "/stats"))} now=${now} chosen=${chosen} choose=${choose} />`;
  return html`<div class="scroll" role="region" aria-label="Topics" tabindex="0">
      <table class="cards">
        <thead>
          <tr><th scope="col"><span class="hidden">Select</span></th><${Head} route=${route} name="Name" sort="name" usual=${HOW.usual} />
          <th scope="col" class="number">Messages</th><th scope="col" class="number">First</th><th scope="col" class="number">Last</th>
          <${Head} route=${route} name="In/s" sort="in" usual=${HOW.usual} /><th scope="col" class="number">Counted</th></tr>
        </thead>
        <tbody>${list.rows.map(row)}</tbody>
      </table>
    </div>
    <${Pages} list=${list} />
    <p class="quiet">First, last: how long ago the messages of the log were published; they are asked for one topic after the other.</p>`;
}

function Row({ route, topic, seen, now, chosen, choose }) {
  const { name } = topic;
  const checked = chosen.includes(name);
  const toggle = () => choose(checked ? chosen.filter((one) => one !== name) : [...chosen, name]);
  const late = seen && now - seen.at > 10000;
  return html`<tr data-row class=${checked ? "chosen" : undefined}>
    <td><label class="tick"><input type="checkbox" aria-label=${`Select ${name}`} checked=${checked} onChange=${toggle} /></label></td>
    <th scope="row"><a href=${toTopic(route.project, name)}>${visible(name)}</a></th>
    <td class="number" data-name="Messages">${count(seen?.total)}</td>
    <td class="number" data-name="First">${age(seen?.oldest?.age)}</td>
    <td class="number" data-name="Last">${age(seen?.newest?.age)}</td>
    <td class="number" data-name="In/s">${rate(topic.in)}</td>
    <td class="number quiet" data-name="Counted">${seen ? (late ? `${age((now - seen.at) / 1000)} ago` : "now") : "…"}</td>
  </tr>`;
}

function Nothing({ route }) {
  if (route.query.name) {
    return html`<${Empty} title="No topic has that in its name"><p>The search is for a part of a name, and case matters.</p></${Empty}>`;
  }
  return html`<${Empty} title="This project has no topics">
    <p>A topic begins with its first message: <code>zq topic publish --project ${visible(route.project)} news '{"hello": 1}'</code></p>
    <p><${Act} rule="topics:create" kind="main" onClick=${() => askToCreate(route.project, "topic")}>Create a topic</${Act}></p>
  </${Empty}>`;
}
