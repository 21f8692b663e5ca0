-- SPDX-License-Identifier: Apache-2.0
-- Finishing messages, and their history.

---- part finishing

-- Part of scripts that finish messages. If the queue has a history, an entry of each message stays; see layout.py.

local PAST = '>BI8I8I8'
local DELETED, POPPED, MOVED, DEAD_LETTERED = 1, 2, 3, 4

-- Returns the next six keys, which belong to a history with this retention in seconds; nil if it is 0.
local function history(seconds)
  if seconds == 0 then return nil end
  local at = keys(6)
  return {
    kept = seconds * 1000, history = KEYS[at], past = KEYS[at + 1], forget = KEYS[at + 2], finished = KEYS[at + 3],
    remains = KEYS[at + 4], latest = KEYS[at + 5],
  }
end

-- Returns history entries for messages that are about to be removed, without their claims. `outcome` is a field of each
-- message, or given for all.
local function keep(q, h, messages, now, outcome)
  local state = redis.call('HMGET', q.state, 'sequence', 'start', 'finished', 'from', 'kept')
  local position, finished = counted(tonumber(state[1]), tonumber(state[2]), now), risen(tonumber(state[3] or 0), now)
  local order, past, forget, records, remains, latest = {}, {}, {}, {}, {}, {}
  for i, m in ipairs(messages) do
    local n = 2 * i - 1
    local place = string.format('%014.0f', position + i)
    order[n], order[n + 1] = place, place
    past[n], past[n + 1] = string.format('%.0f', m.sequence), place
    forget[n], forget[n + 1] = finished + h.kept, place
    records[n] = place
    local state = string.sub(m.state, 1, STATE_SIZE)
    records[n + 1] = struct.pack(PAST, m.outcome or outcome, finished, position + i, finished + h.kept)
      .. front_of(state) .. string.sub(m.value, 1, head_of(m))
    latest[n], latest[n + 1] = id_of(m), place
  end
  local size = #messages * OVERHEAD
  for i, body in ipairs(bodies_of(q, messages)) do
    remains[2 * i - 1], remains[2 * i] = order[2 * i], body
    size = size + #body
  end
  local kept = tonumber(state[5] or 0) + size
  redis.call('HSET', q.state, 'sequence', position + #messages, 'finished', finished, 'kept', kept)
  if not state[4] then redis.call('HSET', q.state, 'from', state[1]) end
  add_usage(0, size)
  put('ZADD', h.history, order)
  put('ZADD', h.past, past)
  put('ZADD', h.forget, forget)
  put('HSET', h.finished, records)
  put('HSET', h.remains, remains)
  put('HSET', h.latest, latest)
end

-- Removes messages permanently. `h`: the queue's history, or nil.
local function finish(q, h, messages, now, outcome)
  if h and #messages > 0 then keep(q, h, messages, now, outcome) end
  remove(q, messages, now)
end

---- part past

-- Part of scripts that read the history; `finishing` precedes it. For each entry, a reply contains the PAST fields,
-- then the message; for a live message, these fields are 0.

local LIVING = struct.pack(PAST, 0, 0, 0, 0)

local function is_kept(record, now)
  local _, _, _, expires = struct.unpack(PAST, record)
  return expires > now
end

-- Returns a reply of entries with their bodies, after the existing `pieces`.
local function answer_of(records, bodies, pieces)
  for i, body in ipairs(bodies) do
    pieces[#pieces + 1] = records[i]
    pieces[#pieces + 1] = body
  end
  return table.concat(pieces)
end

-- Returns the first values of these hash fields that have at most `most` bytes in total, but at least one.
local function values_within(key, fields, most)
  local values = {}
  for first = 1, #fields, AHEAD do
    local slice = redis.call('HMGET', key, unpack(fields, first, math.min(first + AHEAD - 1, #fields)))
    for _, value in ipairs(slice) do
      most = most - #value
      if most < 0 and #values > 0 then return values end
      values[#values + 1] = value
    end
  end
  return values
end

-- Returns a reply of the entries at these positions that still exist.
local function entries_of(h, places, now)
  local shown, records = {}, {}
  for i, record in ipairs(pick(h.finished, places)) do
    if is_kept(record, now) then shown[#shown + 1], records[#records + 1] = places[i], record end
  end
  return answer_of(records, pick(h.remains, shown), {})
end

local function finished_at(record)
  local _, finished = struct.unpack(PAST, record)
  return finished
end

-- Returns the number of entries that finished before a time. Times increase with the positions.
local function earlier_than(h, moment, total)
  local low, high = 0, moment > 0 and total or 0
  while low < high do
    local middle = math.floor((low + high) / 2)
    local place = redis.call('ZRANGE', h.history, middle, middle)[1]
    if finished_at(redis.call('HGET', h.finished, place)) < moment then low = middle + 1 else high = middle end
  end
  return low
end

---- script history_list: no-writes

-- Lists entries above a position that finished in a period, in the order in which they finished. KEYS: project, queue,
-- history. ARGV: now, position, limit, maximum bytes of bodies, since, until. Returns the position to continue from (8
-- bytes; 0: no more entries or the page is full), then entries with bodies.

local now, marker, limit, most, since, before = number(), argument(), number(), number(), number(), number()
local h = history(1)
local total = redis.call('ZCARD', h.history)
local rank = math.max(redis.call('ZCOUNT', h.history, '-inf', marker), earlier_than(h, since, total))
local shown, records, steps, position = {}, {}, 0, 0
while #shown < limit and steps < STEPS and rank < total do
  local places = redis.call('ZRANGE', h.history, rank, rank + math.max(limit - #shown, 100) - 1)
  for i, record in ipairs(pick(h.finished, places)) do
    if finished_at(record) >= before then total = 0; break end
    if is_kept(record, now) and #shown < limit then shown[#shown + 1], records[#records + 1] = places[i], record end
  end
  rank, steps, position = rank + #places, steps + #places, tonumber(places[#places])
end
local bodies = values_within(h.remains, shown, most)
if #shown == limit or #bodies < #shown or rank >= total then position = 0 end
return answer_of(records, bodies, { struct.pack('>I8', position) })

---- script history_newest: no-writes

-- Lists entries below a position (0: all) that finished in a period, latest first. KEYS: project, queue, history. ARGV:
-- now, position, limit, maximum bytes of bodies, since, until. Returns the position to continue from (8 bytes; 0: no
-- more entries or the page is full), then entries with bodies.

local now, marker, limit, most, since, before = number(), argument(), number(), number(), number(), number()
local h = history(1)
local total = redis.call('ZCARD', h.history)
local first = earlier_than(h, since, total)
local rank = earlier_than(h, before, total)
if marker ~= '0' then rank = math.min(rank, redis.call('ZCOUNT', h.history, '-inf', '(' .. marker)) end
local shown, records, steps, position = {}, {}, 0, 0
while #shown < limit and steps < STEPS and rank > first do
  local start = math.max(first, rank - math.max(limit - #shown, 100))
  local places = redis.call('ZREVRANGE', h.history, total - rank, total - start - 1)
  for i, record in ipairs(pick(h.finished, places)) do
    if is_kept(record, now) and #shown < limit then shown[#shown + 1], records[#records + 1] = places[i], record end
  end
  rank, steps, position = start, steps + #places, tonumber(places[#places])
end
local bodies = values_within(h.remains, shown, most)
if #shown == limit or #bodies < #shown or rank <= first then position = 0 end
return answer_of(records, bodies, { struct.pack('>I8', position) })

---- script history_all: no-writes

-- Lists live messages and history entries above a sequence, by sequence. KEYS: project, queue, history. ARGV: now,
-- sequence, limit, maximum bytes of bodies. Returns the sequence to continue from (8 bytes; 0: no more entries or the
-- page is full), then entries with bodies.

local q, now, marker, limit, left, h = queue_at(5), number(), number(), number(), number(), history(1)
local most, entries = math.max(limit, 100), {}

for _, m in ipairs(parsed(q, redis.call('XRANGE', q.stream, marker + 1, '+', 'COUNT', most))) do
  entries[#entries + 1] = { sequence = m.sequence, m = m, size = m.size, is_shown = m.expires > now }
end
local above = string.format('(%.0f', marker)
local past = redis.call('ZRANGE', h.past, above, '+inf', 'BYSCORE', 'LIMIT', 0, most, 'WITHSCORES')
local places = {}
for at = 1, #past, 2 do places[#places + 1] = past[at] end
for i, record in ipairs(pick(h.finished, places)) do
  local size = redis.call('HSTRLEN', h.remains, places[i])
  entries[#entries + 1] = { sequence = tonumber(past[2 * i]), record = record, place = places[i], size = size,
    is_shown = is_kept(record, now) }
end
table.sort(entries, by_sequence)

local pieces, shown, position, full = { '' }, 0, 0, false
for at = 1, math.min(#entries, most) do
  local entry = entries[at]
  position = entry.sequence
  if entry.is_shown then
    left = left - entry.size
    full = left < 0 and shown > 0
    if full then break end
    pieces[#pieces + 1] = entry.record or LIVING
    if entry.m then
      add_message(q, pieces, entry.m)
    else
      pieces[#pieces + 1] = redis.call('HGET', h.remains, entry.place)
    end
    shown = shown + 1
    full = shown == limit
    if full then break end
  end
end
if full or #entries < most then position = 0 end
pieces[1] = struct.pack('>I8', position)
return table.concat(pieces)

---- script history_get: no-writes

-- Returns the latest entries of these ids, in this order. KEYS: project, queue, history. ARGV: now, ids.

local now, h, ids, places = number(), history(1), {}, {}
for at = 2, #ARGV do ids[at - 1] = ARGV[at] end
for _, place in ipairs(pick(h.latest, ids)) do
  if place then places[#places + 1] = place end
end
return entries_of(h, places, now)
