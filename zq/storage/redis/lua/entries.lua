-- SPDX-License-Identifier: Apache-2.0
-- The representation of messages in a queue.

---- part entries

-- Part of scripts that read messages. In a script, a message is a table with these fields: `at`, its id in the stream;
-- `value`, its entry; `state`, its packed state, "" if it has none; the fields of entry and state; `member`, its
-- sequence as a set member; `is_listed`, whether it is in `claimed` (with a claim that has not been marked as lapsed)
-- or in `avail` instead of the lane; in a grouped queue instead `kind`, see lines.lua.

local STATE = '>I8I8I8I8I8I8I8I4I8'
local STATE_SIZE = 68
local AHEAD = 16            -- number of entries to read first if the wanted number is unknown
local cut, unpacked = string.sub, struct.unpack

-- Returns the member of an entry in the format of XRANGE.
local function member_of(entry) return cut(entry[2][2], 2, 7) end

local function sequence_of(entry) return tonumber(cut(entry[1], 1, -3)) end

-- Returns the message of an entry in the format of XRANGE.
local function parse(entry, state)
  local value = entry[2][2]
  local listed, sequence, available, expires, ttl, size, _, _, more = unpacked(ENTRY, value)
  local ends, former, claimed, lease, count, first, claim = 0, 0, 0, 0, 0, 0, ''
  if state then
    available, expires, ttl, ends, former, claimed, lease, count, first = unpacked(STATE, state)
    claim = cut(state, STATE_SIZE + 1)
  end
  return {
    at = entry[1], sequence = sequence, member = cut(value, 2, 7), value = value, state = state or '',
    is_listed = listed == 1 or state and true, kind = listed > 1 and listed or nil, size = size, more = more,
    available = available, expires = expires, ttl = ttl, ends = ends, former = former, claimed = claimed,
    lease = lease, count = count, claim = claim, first = first,
  }
end

local function pack_state(m)
  return struct.pack(STATE, m.available, m.expires, m.ttl, m.ends, m.former, m.claimed, m.lease, m.count, m.first)
    .. m.claim
end

local function id_of(m)
  m.id = m.id or cut(m.value, ENTRY_SIZE + 1, ENTRY_SIZE + unpacked('>I2', m.value, SIZES_AT))
  return m.id
end

local function client_of(m)
  local id, client = unpacked('>I2I2', m.value, SIZES_AT)
  return cut(m.value, ENTRY_SIZE + id + 1, ENTRY_SIZE + id + client)
end

-- Returns the number of bytes in an entry before the body.
local function head_of(m)
  local id, client, more = unpacked('>I2I2I2', m.value, SIZES_AT)
  return ENTRY_SIZE + id + client + more
end

-- Returns the states of the members that have one.
local function states_of(q, members)
  if redis.call('EXISTS', q.states) == 0 then return {} end
  return pick(q.states, members)
end

-- Returns the messages of entries in the format of XRANGE.
local function parsed(q, entries)
  local members, messages = {}, {}
  for i, entry in ipairs(entries) do members[i] = member_of(entry) end
  local states = states_of(q, members)
  for i, entry in ipairs(entries) do messages[i] = parse(entry, states[i]) end
  return messages
end

-- Returns the entries of ascending sequences, by member. If the sequences are far apart, few other entries are read.
-- `count`: number of entries to read first.
local function read(q, sequences, count)
  local found, at, run = {}, 1, 1
  while at <= #sequences do
    -- Consecutive sequences have no entries between them.
    run = math.max(run, at)
    while sequences[run + 1] == sequences[run] + 1 do run = run + 1 end
    count = math.min(math.max(count, run - at + 1), #sequences - at + 1)
    local entries = redis.call('XRANGE', q.stream, sequences[at], sequences[#sequences], 'COUNT', count)
    local hits = 0
    for _, entry in ipairs(entries) do
      local sequence = sequence_of(entry)
      while sequences[at] and sequences[at] < sequence do at = at + 1 end
      if sequences[at] == sequence then
        found[member_of(entry)], hits, at = entry, hits + 1, at + 1
      end
    end
    if #entries < count then return found end
    count = (hits == count or hits > 1) and 2 * hits or 1
  end
  return found
end

-- Returns the existing messages of these members, in this order. `ahead`: see `read`.
local function load(q, members, ahead)
  if #members == 0 then return {} end
  local sequences, found, last, rises = {}, {}, 0, true
  for i, member in ipairs(members) do
    local sequence = unpacked(MEMBER, member)
    sequences[i], rises, last = sequence, rises and sequence > last, sequence
  end
  if not rises then table.sort(sequences) end
  local entries, states = read(q, sequences, ahead or AHEAD), states_of(q, members)
  for i, member in ipairs(members) do
    local entry = entries[member]
    if entry then found[#found + 1] = parse(entry, states[i]) end
  end
  return found
end

-- Returns the bodies of the messages.
local function bodies_of(q, messages)
  local bodies, at, large = {}, {}, {}
  for i, m in ipairs(messages) do
    if m.size < LARGE then
      bodies[i] = cut(m.value, head_of(m) + 1)
    else
      large[#large + 1], at[#at + 1] = m.member, i
    end
  end
  for i, body in ipairs(pick(q.bodies, large)) do bodies[at[i]] = body end
  return bodies
end

-- Returns the first messages with at most `most` bytes of bodies in total, but at least one.
local function portion(messages, most)
  local found = {}
  for i, m in ipairs(messages) do
    most = most - m.size
    if most < 0 and i > 1 then break end
    found[i] = m
  end
  return found
end

-- Returns a state preceded by its length, as replies contain it before an entry.
local function front_of(state) return state == '' and '\0\0' or struct.pack('>I2', #state) .. state end

-- Adds a message to the pieces of a reply: state, entry, and the body if it is stored separately.
local function add_message(q, pieces, m)
  local n = #pieces
  pieces[n + 1], pieces[n + 2] = front_of(m.state), m.value
  if m.size >= LARGE then pieces[n + 3] = redis.call('HGET', q.bodies, m.member) end
end

-- Returns a reply of the messages after the existing `pieces`.
local function answer(q, messages, pieces)
  for _, m in ipairs(messages) do add_message(q, pieces, m) end
  return table.concat(pieces)
end

-- Returns the live messages with these ids.
local function locate(q, ids, now)
  local members, live = {}, {}
  for _, member in ipairs(pick(q.ids, ids)) do
    if member then members[#members + 1] = member end
  end
  for _, m in ipairs(load(q, members)) do
    if m.expires > now then live[#live + 1] = m end
  end
  return live
end

-- Returns the members in the list of a claim.
local function members_in(list)
  local members = {}
  for at = 1, #list, MEMBER_SIZE do members[#members + 1] = string.sub(list, at, at + MEMBER_SIZE - 1) end
  return members
end

local function by_sequence(one, other) return one.sequence < other.sequence end

-- Returns the messages by sequence; they usually have this order already.
local function in_sequence(messages)
  for i = 2, #messages do
    if messages[i - 1].sequence > messages[i].sequence then
      table.sort(messages, by_sequence)
      break
    end
  end
  return messages
end

-- Returns all messages of an active claim, by sequence.
local function held(q, claim, now)
  local live = {}
  for _, m in ipairs(load(q, members_in(redis.call('HGET', q.claims, claim) or ''))) do
    if m.ends > now and m.expires > now then live[#live + 1] = m end
  end
  return in_sequence(live)
end

-- Returns the holder of a claim, or "" if it is unknown.
local function holder_of(q, claim) return redis.call('HGET', q.claims, HOLDER .. claim) or '' end

-- Returns the members in the list of a claim as a set, so that no search of a long string is needed for each of them.
local function on_list(q, claim)
  local found = {}
  for _, member in ipairs(members_in(redis.call('HGET', q.claims, claim) or '')) do found[member] = true end
  return found
end

---- part lane

-- Part of scripts that look for ready messages. The lane of a queue contains the messages that were posted without a
-- delay and never claimed. It consists of the stream's entries after `head`, up to and including `laned`. Their
-- available-at increases with the sequence, so they need no other index. All other messages are in `claimed` or
-- `avail`.

-- Returns the first and last sequence of the lane, and whether the queue is grouped and has no lane.
local function lane_of(q)
  local state = redis.call('HMGET', q.state, 'head', 'laned', 'grouping')
  return tonumber(state[1] or 0), tonumber(state[2] or 0), state[3] and true
end

-- Returns the lane's messages among at most `count` entries that begin at `from`, and the last sequence of these
-- entries.
local function lane_from(q, from, last, count)
  if from > last then return {}, last end
  local entries, found, position = redis.call('XRANGE', q.stream, from, last, 'COUNT', count), {}, last
  for _, entry in ipairs(entries) do
    local m = parse(entry)
    if not m.is_listed then found[#found + 1] = m end
  end
  if #entries == count then position = sequence_of(entries[count]) end
  return found, position
end

---- part counting

-- Part of scripts that count ready messages.

-- Returns the first live message of the lane. Examines at most about `most` entries.
local function first_of_lane(q, now, most)
  local head, last = lane_of(q)
  local steps, size = 0, 1
  while head < last and steps < most do
    local found
    found, head = lane_from(q, head + 1, last, size)
    for _, m in ipairs(found) do
      if m.expires > now then return m end
    end
    steps, size = steps + size, 100
  end
  return nil
end

-- Returns the two results of count_lane for a lane that is examined from its end, then from its front.
local function walk_lane(q, now, count)
  local head, last = lane_of(q)
  local front, steps, later = head, 0, nil
  while last > head and steps < STEPS do
    local entries = redis.call('XREVRANGE', q.stream, last, head + 1, 'COUNT', 100)
    for _, entry in ipairs(entries) do
      local m = parse(entry)
      if not m.is_listed and m.available <= now then return count, later end
      if not m.is_listed then count, later = count - 1, m.available end
      last = m.sequence - 1
    end
    if #entries < 100 then return 0, later end
    steps = steps + 100
  end
  local seen = 0
  while front < last and steps < 2 * STEPS do
    local found
    found, front = lane_from(q, front + 1, last, 100)
    steps = steps + 100
    for _, m in ipairs(found) do
      if m.available > now then return seen, m.available end
      seen = seen + 1
    end
  end
  return seen, later
end

-- Returns the number of available messages in the lane, and the time at which the next one is available, if known; nil
-- if the queue is grouped. Times in the lane may be slightly ahead, because clocks differ; after a wrong clock, all may
-- be.
local function count_lane(q, now)
  local state = redis.call('HMGET', q.state, 'fresh', 'ceiling', 'grouping')
  if state[3] then return nil end
  local count = redis.call('XLEN', q.stream) - redis.call('ZCARD', q.avail) - redis.call('ZCARD', q.claimed)
  if math.max(tonumber(state[1] or 0), tonumber(state[2] or 0)) <= now or count <= 0 then return math.max(0, count) end
  return walk_lane(q, now, count)
end
