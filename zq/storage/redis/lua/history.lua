-- SPDX-License-Identifier: Apache-2.0
-- Finishing, and the history of finished messages.

---- part finishing

-- Part of scripts in which messages finish. Where the queue has a history, a record of each stays: layout.py draws it.

local PAST = '>BI8I8I8'
local DELETED, POPPED, MOVED, DEAD_LETTERED = 1, 2, 3, 4

-- The next six keys, those of a queue's history that keeps records for so many seconds; nil for 0.
local function history(seconds)
  if seconds == 0 then return nil end
  local at = keys(6)
  return {
    kept = seconds * 1000, history = KEYS[at], past = KEYS[at + 1], forget = KEYS[at + 2], finished = KEYS[at + 3],
    remains = KEYS[at + 4], latest = KEYS[at + 5],
  }
end

-- Records of messages that are about to go, as they are now but for their claims; `outcome` of each is set, or given.
local function keep(q, h, messages, now, outcome)
  local state = redis.call('HMGET', q.state, 'sequence', 'start', 'finished', 'from', 'kept')
  local position, finished = counted(tonumber(state[1]), tonumber(state[2]), now), risen(tonumber(state[3] or 0), now)
  local members, order, past, forget, records, remains, latest = {}, {}, {}, {}, {}, {}, {}
  for i, m in ipairs(messages) do
    local n = 2 * i - 1
    local place = string.format('%014.0f', position + i)
    members[i], order[n], order[n + 1] = m.member, place, place
    past[n], past[n + 1] = m.member, place
    forget[n], forget[n + 1] = finished + h.kept, place
    records[n] = place
    records[n + 1] = struct.pack(PAST, m.outcome or outcome, finished, position + i, finished + h.kept)
      .. string.sub(m.record, 1, HEAD_SIZE - 2) .. '\0\0' .. m.tail
    latest[n], latest[n + 1] = id_of(m.record), place
  end
  local size = #messages * OVERHEAD
  for i, body in ipairs(pick(q.bodies, members)) do
    remains[2 * i - 1], remains[2 * i] = order[2 * i], body
    messages[i].size, size = #body, size + #body
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

-- Takes messages away for good. `h`: the queue's history, nil if it keeps none.
local function finish(q, h, messages, now, outcome)
  if h and #messages > 0 then keep(q, h, messages, now, outcome) end
  remove(q, messages)
end

---- part past

-- Part of scripts that read the history, behind `finishing`. A reply holds for each record what PAST says, the
-- message's record, length of the body, body; for a living message zeros instead of the first.

local LIVING = struct.pack(PAST, 0, 0, 0, 0)

local function is_kept(record, now)
  local _, _, _, expires = struct.unpack(PAST, record)
  return expires > now
end

-- A reply of the records at these places that still are kept.
local function entries_of(h, places, now)
  local shown, records = {}, {}
  for i, record in ipairs(pick(h.finished, places)) do
    if is_kept(record, now) then shown[#shown + 1], records[#records + 1] = places[i], record end
  end
  return answer(records, pick(h.remains, shown), {})
end

---- script history_list: no-writes

-- Records above a position that finished within a time, in the order of finishing. KEYS: project, queue, history.
-- ARGV: now, position, limit, bytes of bodies, since, until.
-- Returns the position to go on from (8 bytes; 0: nothing is left or the page is full), records with bodies.

local now, marker, limit, most, since, before = number(), argument(), number(), number(), number(), number()
local h = history(1)
local total = redis.call('ZCARD', h.history)

local function finished_at(record)
  local _, finished = struct.unpack(PAST, record)
  return finished
end

-- How many records finished before `since`: moments rise along the order.
local function earlier()
  local low, high = 0, since > 0 and total or 0
  while low < high do
    local middle = math.floor((low + high) / 2)
    local place = redis.call('ZRANGE', h.history, middle, middle)[1]
    if finished_at(redis.call('HGET', h.finished, place)) < since then low = middle + 1 else high = middle end
  end
  return low
end

local rank = math.max(redis.call('ZCOUNT', h.history, '-inf', marker), earlier())
local shown, records, steps, position = {}, {}, 0, 0
while #shown < limit and steps < STEPS and rank < total do
  local places = redis.call('ZRANGE', h.history, rank, rank + math.max(limit - #shown, 100) - 1)
  for i, record in ipairs(pick(h.finished, places)) do
    if finished_at(record) >= before then total = 0; break end
    if is_kept(record, now) and #shown < limit then shown[#shown + 1], records[#records + 1] = places[i], record end
  end
  rank, steps, position = rank + #places, steps + #places, tonumber(places[#places])
end
local bodies = portion(h.remains, shown, most)
if #shown == limit or #bodies < #shown or rank >= total then position = 0 end
return answer(records, bodies, { struct.pack('>I8', position) })

---- script history_all: no-writes

-- Living messages and records above a sequence, in sequence. KEYS: project, queue, history.
-- ARGV: now, sequence, limit, bytes of bodies.
-- Returns the sequence to go on from (8 bytes; 0: nothing is left or the page is full), records with bodies.

local q, now, marker, limit, left, h = queue_at(5), number(), '(' .. argument(), number(), number(), history(1)
local most, entries = math.max(limit, 100), {}

local function gather(order, records, bodies, is_past)
  local found, members = redis.call('ZRANGE', order, marker, '+inf', 'BYSCORE', 'LIMIT', 0, most, 'WITHSCORES'), {}
  for at = 1, #found, 2 do members[#members + 1] = found[at] end
  for i, record in ipairs(pick(records, members)) do
    entries[#entries + 1] =
      { sequence = tonumber(found[2 * i]), member = members[i], record = record, bodies = bodies, is_past = is_past }
  end
end

local function is_shown(entry)
  if entry.is_past then return is_kept(entry.record, now) end
  local _, _, expires = struct.unpack('>I8I8I8', entry.record)
  return expires > now
end

gather(q.order, q.records, q.bodies, false)
gather(h.past, h.finished, h.remains, true)
table.sort(entries, function(one, other) return one.sequence < other.sequence end)
local pieces, shown, position, full = { '' }, 0, 0, false
for at = 1, math.min(#entries, most) do
  local entry = entries[at]
  position = entry.sequence
  if is_shown(entry) then
    local record = entry.is_past and entry.record or LIVING .. entry.record
    local body = redis.call('HGET', entry.bodies, entry.member)
    left = left - #body
    full = left < 0 and shown > 0
    if full then break end
    add_message(pieces, record, body)
    shown = shown + 1
    full = shown == limit
    if full then break end
  end
end
if full or #entries < most then position = 0 end
pieces[1] = struct.pack('>I8', position)
return table.concat(pieces)

---- script history_get: no-writes

-- KEYS: project, queue, history. ARGV: now, ids. Returns the latest record of each of them that has one, in this order.

local now, h, ids, places = number(), history(1), {}, {}
for at = 2, #ARGV do ids[at - 1] = ARGV[at] end
for _, place in ipairs(pick(h.latest, ids)) do
  if place then places[#places + 1] = place end
end
return entries_of(h, places, now)
