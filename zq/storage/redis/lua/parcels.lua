-- SPDX-License-Identifier: Apache-2.0
-- Adoption of exported items of another store: see parcels.py. Items that exist already do not change.

---- script adopt_queue

-- Creates a queue if it is missing, and raises its counters. KEYS: project, queue, documents.
-- ARGV: the guard, see `guarding`; now, name, metadata, grouping ("" = none), kind of a grouped queue's messages, last sequence, available-at of
-- the last post without delay, finish time of the last history entry. Returns "".

local refused = outdated()
if refused then return refused end
local q, now, name, metadata, grouping, kind = queue_at(5), number(), argument(), argument(), argument(), argument()
local sequence, fresh, finished = number(), number(), number()
if redis.call('EXISTS', q.state) == 0 then
  create(q, name, metadata)
  if grouping ~= '' then
    redis.call('HSET', KEYS[2], GROUPING .. name, grouping)
    redis.call('HSET', q.state, 'grouping', kind)
  end
end
local state = redis.call('HMGET', q.state, 'sequence', 'fresh', 'finished', 'start')
sequence = math.max(sequence, tonumber(state[1] or 0))
redis.call('HSET', q.state, 'sequence', sequence, 'fresh', math.max(fresh, tonumber(state[2] or 0)),
  'finished', math.max(finished, tonumber(state[3] or 0)))
redis.call('HSETNX', q.state, 'from', 0)
redis.call('HSETNX', q.state, 'start', now * PER_MS - sequence)
return ''

---- script adopt_messages

-- Stores messages with their sequences, outside the lane. KEYS: project, queue, documents.
-- ARGV: the guard, see `guarding`; now, the queue's full name; for each message, in order of sequences: sequence, claim count, time of the first
-- claim in this queue, the message as packed by layout.encode_draft. Returns "".

local refused = outdated()
if refused then return refused end
local q, now, full = queue_at(5), number(), argument()
local kind = tonumber(redis.call('HGET', q.state, 'grouping') or 1)
local mark, lined, count, size_of_all = string.char(kind), {}, 0, 0
local avail, expiry, ids, bodies, states = {}, {}, {}, {}, {}
q.full = full

local function adopt(sequence, claims, first, draft)
  local available, expires, ttl, size, id_size = struct.unpack('>I8I8I8I4I2', draft)
  local start = ENTRY_SIZE - DRAFT_FRONT + 1
  local id, member = string.sub(draft, start, start + id_size - 1), struct.pack(MEMBER, sequence)
  if redis.call('HEXISTS', q.ids, id) == 1 then return end
  local value = mark .. member .. draft
  if size >= LARGE then
    bodies[#bodies + 1], bodies[#bodies + 2] = member, string.sub(value, -size)
    value = string.sub(value, 1, -size - 1)
  end
  redis.call('XADD', q.stream, string.format('%.0f', sequence), 'm', value)
  expiry[#expiry + 1], expiry[#expiry + 2] = string.format('%.0f', expires), member
  ids[#ids + 1], ids[#ids + 2] = id, member
  if kind == 1 then avail[#avail + 1], avail[#avail + 2] = string.format('%.0f', available), member end
  if claims > 0 then
    states[#states + 1] = member
    states[#states + 1] = pack_state({
      available = available, expires = expires, ttl = ttl, ends = 0, former = 0, claimed = 0, lease = 0,
      count = claims, first = first, claim = '',
    })
  end
  if kind > 1 then
    lined[#lined + 1] = {
      kind = kind, value = value, more = struct.unpack('>I2', value, SIZES_AT + 4), member = member,
      sequence = sequence, available = available, expires = expires,
    }
  end
  count, size_of_all = count + 1, size_of_all + size + OVERHEAD
end

while argument_at < #ARGV do adopt(number(), number(), number(), argument()) end
put('ZADD', q.expiry, expiry)
put('HSET', q.ids, ids)
put('ZADD', q.avail, avail)
put('HSET', q.bodies, bodies)
put('HSET', q.states, states)
if #lined > 0 then change_lines(q, now, {}, lined, load) end
for field, more in pairs({ entered = count, stored = count, bytes = size_of_all }) do
  redis.call('HINCRBY', q.state, field, more)
end
add_usage(count, size_of_all)
return ''

---- script adopt_history

-- Adds entries to a queue's history. KEYS: project, queue, documents, history.
-- ARGV: the guard, see `guarding`; for each entry: position, sequence of the message, expiry, the record as packed by `keep`, the message's packed
-- id, body. Returns "".

local refused = outdated()
if refused then return refused end
local q, h, size = queue_at(5), history(1), 0
local function adopt(position, sequence, expires, record, id, body)
  local place = string.format('%014.0f', position)
  if redis.call('HEXISTS', h.finished, place) == 1 then return end
  redis.call('ZADD', h.history, place, place)
  redis.call('ZADD', h.past, string.format('%.0f', sequence), place)
  redis.call('ZADD', h.forget, expires, place)
  redis.call('HSET', h.finished, place, record)
  redis.call('HSET', h.remains, place, body)
  if place > (redis.call('HGET', h.latest, id) or '') then redis.call('HSET', h.latest, id, place) end
  size = size + #body + OVERHEAD
end

while argument_at < #ARGV do adopt(number(), number(), argument(), argument(), argument(), argument()) end
redis.call('HINCRBY', q.state, 'kept', size)
add_usage(0, size)
return ''

---- script adopt_keys

-- Stores idempotency keys of a queue or, if its name is "", of the log. KEYS: project, queue, documents, answers.
-- ARGV: the guard, see `guarding`; now, the queue's name; for each key: idempotency key, digest, expiry, result. Returns "".

local refused = outdated()
if refused then return refused end
local now, name, once = number(), argument(), keys(2)
local function adopt(key, digest, expires, answer)
  if known(once, key, now) then return end
  if name == '' then
    remember(once, key, digest, expires, answer)
  else
    remember_for(name, once, key, digest, expires, answer)
  end
end

while argument_at < #ARGV do adopt(argument(), argument(), number(), argument()) end
return ''

---- script adopt_work

-- Stores fences and producers. KEYS: project, queue (not used), documents, transactions. ARGV: the guard, see
-- `guarding`; for each: "f" or "p", name, epoch or batch, its time or ""; for a producer, its record and expiry, and for
-- a fence, twice "". Returns "".

local refused = outdated()
if refused then return refused end
local t = transactions()
local function is_above(one, other) return #one > #other or #one == #other and one > other end

local function adopt(kind, name, place, moment, kept, expires)
  local former = redis.call('HGET', kind == 'f' and t.fences or t.producers, name)
  if former and kind == 'p' then former = string.sub(former, struct.size(PRODUCER) + 1) end
  if former and not is_above(place, former) then return end
  if kind == 'f' then
    redis.call('HSET', t.fences, name, place)
  else
    redis.call('HSET', t.producers, name, kept)
    redis.call('ZADD', t.producing, expires, name)
  end
  redis.call('ZADD', t.work, 0, kind .. name)
  if moment ~= '' then redis.call('HSET', t.moments, kind .. name, moment .. ' ' .. place) end
end

while argument_at < #ARGV do adopt(argument(), argument(), argument(), argument(), argument(), argument()) end
return ''

---- script adopt_log

-- Sets the state of an empty log. KEYS: project, queue (not used), documents, the log. ARGV: the guard, see `guarding`;
-- last sequence, numbers of messages and bytes, last trimmed sequence. Returns "".

local refused = outdated()
if refused then return refused end
local log = log_at(keys(LOG_KEYS))
if redis.call('EXISTS', log.counts) == 0 then
  local sequence, published, published_bytes, dropped = argument(), argument(), argument(), argument()
  keep_counts(log, {
    sequence = sequence, published = published, published_bytes = published_bytes, fallen = 0, fallen_bytes = 0,
    dropped = dropped, removed = dropped,
  })
end
return ''

---- script adopt_batches

-- Adds batches to a log. KEYS: project, queue (not used), documents, the log. ARGV: the guard, see `guarding`; for each
-- batch: last sequence, last expiry, front, messages. Returns "".

local refused = outdated()
if refused then return refused end
local log = log_at(keys(LOG_KEYS))
while argument_at < #ARGV do
  local last, expires, front, messages = number(), argument(), argument(), argument()
  if not messages_of(log, last) then
    redis.call('XADD', log.stream, entry_id(last), front, messages)
    redis.call('ZADD', log.topics, 0, front)
    redis.call('ZADD', log.fading, expires, front)
  end
end
return ''

---- script adopt_documents

-- Stores documents with their versions. KEYS: project, queue (not used), documents (of the guard), documents, titles,
-- expiry. ARGV: the guard, see `guarding`; for each document: title, expiry or 0, packed document. Returns "".

local refused = outdated()
if refused then return refused end
local at = keys(3)
while argument_at < #ARGV do store_document(at, argument(), argument(), argument()) end
return ''
