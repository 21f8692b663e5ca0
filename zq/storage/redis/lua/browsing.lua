-- SPDX-License-Identifier: Apache-2.0
-- Messages in one state.

---- script browse: allow-oom

-- Lists the messages in one state. Claims that have ended are treated as lapsed. KEYS: project, queue. ARGV: now,
-- state; the position to continue from: time, sequence, and sequence in the lane; limit, maximum bytes of bodies.
-- Returns whether the call stopped after its maximum number of entries (1 byte), the position to continue from (3
-- numbers) and the messages: ready and delayed messages in the order of claims, claimed messages by sequence. Returns
-- "" for a grouped queue, whose order is known only line by line.

local q, now, wanted = queue_at(5), number(), argument()
local place = { available = number(), sequence = number(), lane = number() }
local limit, most = number(), number()
local is_ready = wanted == 'ready'

local function reply(again, messages)
  return answer(q, messages, { struct.pack('>BI8I8I8', again and 1 or 0, place.available, place.sequence, place.lane) })
end

local MANY = 4 * STEPS      -- sequences: examining them takes as long as skipping STEPS messages

-- Lists claimed messages by reading and sorting all of `claimed`, which is ordered by the ends of claims. Returns the
-- messages, the last sequence examined, and whether there are more.
local function among_claimed()
  local sequences, members, live = {}, {}, {}
  for _, member in ipairs(redis.call('ZRANGE', q.claimed, '(' .. now, '+inf', 'BYSCORE')) do
    local sequence = unpacked(MEMBER, member)
    if sequence > place.sequence then sequences[#sequences + 1] = sequence end
  end
  table.sort(sequences)
  for i = 1, math.min(#sequences, limit) do members[i] = struct.pack(MEMBER, sequences[i]) end
  for _, m in ipairs(load(q, members)) do
    if m.expires > now then live[#live + 1] = m end
  end
  return live, sequences[#members] or place.sequence, #sequences > limit
end

-- Lists claimed messages in the same way, but by examining one message of the stream after the other.
local function among_all()
  local live, passed, steps, more = {}, place.sequence, 0, true
  while more and #live < limit and steps < STEPS do
    local entries, members = redis.call('XRANGE', q.stream, passed + 1, '+', 'COUNT', 100), {}
    for i, entry in ipairs(entries) do members[i] = member_of(entry) end
    local ends = #entries > 0 and redis.call('ZMSCORE', q.claimed, unpack(members)) or {}
    for i, m in ipairs(parsed(q, entries)) do
      if #live == limit then break end
      if (tonumber(ends[i]) or 0) > now and m.expires > now then live[#live + 1] = m end
      passed = m.sequence
    end
    steps, more = steps + #entries, #entries == 100
  end
  return live, passed, more
end

local function claimed()
  local look = redis.call('ZCARD', q.claimed) > MANY and among_all or among_claimed
  local live, passed, more = look()
  local found = portion(live, most)
  place.sequence = #found < #live and found[#found].sequence or passed
  return reply(#found == 0 and more, found)
end

-- Counts the entries of `avail` up to the position.
local function passed()
  local moment = string.format('%.0f', place.available)
  local low = redis.call('ZCOUNT', q.avail, '-inf', '(' .. moment)
  local high = low + redis.call('ZCOUNT', q.avail, moment, moment)
  while low < high do
    local middle = math.floor((low + high) / 2)
    if unpacked(MEMBER, redis.call('ZRANGE', q.avail, middle, middle)[1]) <= place.sequence then
      low = middle + 1
    else
      high = middle
    end
  end
  return low
end

-- Lists messages of `avail`. Returns them and the last one examined. `more` is as for take_lane.
local function from_listed()
  local rank, live, steps, last, more = passed(), {}, 0, nil, true
  if not is_ready then rank = math.max(rank, redis.call('ZCOUNT', q.avail, '-inf', now)) end
  while more and #live < limit and steps < STEPS do
    local want = math.max(limit - #live, 16)
    local members = redis.call('ZRANGE', q.avail, rank, rank + want - 1)
    local messages, taken = load(q, members), {}
    local kept = reserved(q, messages)
    more = #members == want
    for _, m in ipairs(messages) do
      if is_ready and m.available > now then
        more = false
        break
      end
      if #live == limit then break end
      if kept[m.member] then
        taken[#taken + 1] = m.member
      elseif m.expires > now then
        live[#live + 1] = m
      end
      last = m
    end
    reserve(q, taken)
    rank, steps = rank + #members - #taken, steps + #members
  end
  return { live = live, last = last, more = more and #live < limit }
end

-- Lists messages of the lane. `passed` is the last sequence examined.
local function from_lane()
  local head, last = lane_of(q)
  local at, live, steps, more = math.max(head, place.lane), {}, 0, true
  while more and at < last and #live < limit and steps < STEPS do
    local want = math.max(limit - #live, 16)
    local found, position = lane_from(q, at + 1, last, want)
    for _, m in ipairs(found) do
      if m.available > now then more = false end
      if not more or #live == limit then
        position = m.sequence - 1
        break
      end
      if m.expires > now then live[#live + 1] = m end
    end
    at, steps = position, steps + want
  end
  return { live = live, passed = at, more = more and at < last and #live < limit }
end

-- Lists the messages at the end of the lane that are not available yet. They are few: clocks differ only a little.
local function later_in_lane()
  local head, last = lane_of(q)
  local from, back, live, is_over = math.max(head, place.lane) + 1, {}, {}, false
  while from <= last and not is_over do
    local entries = redis.call('XREVRANGE', q.stream, last, from, 'COUNT', 100)
    for _, entry in ipairs(entries) do
      local m = parse(entry)
      is_over = is_over or not m.is_listed and m.available <= now
      if not is_over and not m.is_listed and m.expires > now then back[#back + 1] = m end
      last = m.sequence - 1
    end
    is_over = is_over or #entries < 100
  end
  for i = #back, math.max(1, #back - limit + 1), -1 do live[#live + 1] = back[i] end
  return { live = live, passed = place.lane, more = false }
end

-- Merges the first messages of both orders. Messages not examined yet may precede those of the other order.
local function merged(listed, lane)
  local found, at, other_at = {}, 1, 1
  while #found < limit do
    local one, other = lane.live[at], listed.live[other_at]
    if not one and (lane.more or not other) or not other and listed.more then break end
    if one and (not other or is_before(one, other)) then
      found[#found + 1], at = one, at + 1
    else
      found[#found + 1], other_at = other, other_at + 1
    end
  end
  return found, not lane.live[at], not listed.live[other_at]
end

local function waiting()
  local listed, lane = from_listed(), is_ready and from_lane() or later_in_lane()
  local live, lane_is_done, listed_is_done = merged(listed, lane)
  local found = portion(live, most)
  for _, m in ipairs(found) do
    place.available, place.sequence = m.available, m.sequence
    if not m.is_listed then place.lane = m.sequence end
  end
  local is_whole = #found == #live
  if is_whole and lane_is_done then place.lane = math.max(place.lane, lane.passed) end
  local last = listed.last
  if is_whole and listed_is_done and last and is_before(place, last) then
    place.available, place.sequence = last.available, last.sequence
  end
  return reply(#found == 0 and (lane.more or listed.more), found)
end

if select(3, lane_of(q)) then return '' end
if lapse(q, now) then return reply(true, {}) end
return wanted == 'claimed' and claimed() or waiting()
