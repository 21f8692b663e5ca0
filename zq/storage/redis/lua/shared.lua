-- SPDX-License-Identifier: Apache-2.0
-- What several files' scripts have in common.

---- part shared

-- What the scripts on queues have in common; it is put in front of each, behind FALSE_FUTURE: ms ahead of now from
-- which on a queue's last moment is not believed, and OVERHEAD: bytes that a message counts besides its body.
-- layout.py draws the keys.
--
-- A message in a script is a table: the fields of its record's head, and `member` (its sequence with 14 digits),
-- `claim`, `record` (as it was read) and `tail` (the part of it that never changes).

local DIGITS = 14
local PER_MS = 16           -- a queue's sequences rise with the clock at least so fast: see decision 0011
local MAX_BY_CLOCK = 9e13

-- The last sequence given, or, what is more, the one that the clock is at.
local function counted(sequence, start, now) return math.max(sequence, math.min(now * PER_MS - start, MAX_BY_CLOCK)) end

local HEAD = '>I8I8I8I8I8I8I8I8I4I2'
local HEAD_SIZE = 70
local TAIL = '>I8I4I2I2I2I2I2'
local TAIL_SIZE = 22
local SLICE = 2000          -- arguments of one command: Lua's stack is limited
local AHEAD = 16            -- bodies that are read at a time where their sizes decide how many are wanted
local STEPS = 1000          -- entries that one call steps over at most
local RESERVED = 1e15       -- score of what a commit is going to delete: see reserved
local READY = 'zq:ready'    -- channel for the names of queues that messages came to

local argument_at, key_at = 0, 13

-- The next of ARGV: as it is, as a number.
local function argument()
  argument_at = argument_at + 1
  return ARGV[argument_at]
end

local function number() return tonumber(argument()) end

-- Where the next `count` keys begin, of those behind project and queue.
local function keys(count)
  local first = key_at + 1
  key_at = key_at + count
  return first
end

-- The keys of the queue whose first key is KEYS[at].
local function queue_at(at)
  return {
    state = KEYS[at], avail = KEYS[at + 1], order = KEYS[at + 2], expiry = KEYS[at + 3], claimed = KEYS[at + 4],
    records = KEYS[at + 5], bodies = KEYS[at + 6], ids = KEYS[at + 7], claims = KEYS[at + 8],
  }
end

-- A full name, as layout.full writes it, holds the project's name and the queue's.
local function name_of(full) return string.sub(full, 5 + struct.unpack('>I4', full)) end

-- The metadata of the queue of this name, if they are not the expected ones ("" = any); else nil.
local function other_metadata(name, expected)
  if expected == '' then return nil end
  local metadata = redis.call('HGET', KEYS[2], name) or '{}'
  return metadata ~= expected and metadata or nil
end

-- Notifies whoever listens. A user who must not is no reason to fail in the middle of a change.
local function notify(full) redis.pcall('PUBLISH', READY, full) end

-- A writing command with any number of arguments.
local function put(command, key, arguments)
  for first = 1, #arguments, SLICE do
    redis.call(command, key, unpack(arguments, first, math.min(first + SLICE - 1, #arguments)))
  end
end

-- HMGET of any number of fields.
local function pick(key, fields)
  if #fields == 0 then return {} end
  if #fields <= SLICE then return redis.call('HMGET', key, unpack(fields)) end
  local values = {}
  for first = 1, #fields, SLICE do
    local slice = redis.call('HMGET', key, unpack(fields, first, math.min(first + SLICE - 1, #fields)))
    for _, value in ipairs(slice) do values[#values + 1] = value end
  end
  return values
end

local function parse(member, record)
  local m = { member = member, record = record }
  local length
  m.sequence, m.available, m.expires, m.ttl, m.ends, m.former, m.claimed, m.lease, m.count, length =
    struct.unpack(HEAD, record)
  m.claim = length > 0 and string.sub(record, -length) or ''
  m.tail = string.sub(record, HEAD_SIZE + 1, #record - length)
  return m
end

local function pack(m)
  return struct.pack(HEAD, m.sequence, m.available, m.expires, m.ttl, m.ends, m.former, m.claimed, m.lease, m.count,
    #m.claim) .. m.tail .. m.claim
end

-- The id in a record, which begins behind `skip` bytes.
local function id_of(record, skip)
  local first = HEAD_SIZE + (skip or 0)
  local length = struct.unpack('>I2', record, first + 13)
  return string.sub(record, first + TAIL_SIZE + 1, first + TAIL_SIZE + length)
end

-- The messages of these members, parsed; all must be there.
local function load(q, members)
  local found = pick(q.records, members)
  for i, record in ipairs(found) do found[i] = parse(members[i], record) end
  return found
end

-- Adds a message to what a reply is made of: record, length of the body, body.
local function add_message(pieces, record, body)
  local n = #pieces
  pieces[n + 1], pieces[n + 2], pieces[n + 3] = record, struct.pack('>I4', #body), body
end

-- Removes messages from the lists of the claims that their records name.
local function remove_from_claims(q, messages)
  local claims = {}
  for _, m in ipairs(messages) do
    if m.claim ~= '' then
      claims[m.claim] = claims[m.claim] or {}
      claims[m.claim][m.member] = true
    end
  end
  for claim, gone in pairs(claims) do
    local list, kept = redis.call('HGET', q.claims, claim) or '', {}
    for at = 1, #list, DIGITS do
      local member = string.sub(list, at, at + DIGITS - 1)
      if not gone[member] then kept[#kept + 1] = member end
    end
    if #kept > 0 then
      redis.call('HSET', q.claims, claim, table.concat(kept))
    else
      redis.call('HDEL', q.claims, claim)
    end
  end
end

-- What a project has stored is a sum of figures: `stored` messages and their `bytes` of each queue, the bytes `kept` in
-- its history, what is staged, what is remembered. Each changes in the step that changes what it counts, and so does
-- the sum. Messages and records of history that no version has counted have no sequence above a queue's `from`.

local ANSWERED = 'answers:'  -- before a queue's name: the figure of what is remembered there

-- Adds to a field of the sum, of which nothing is left when it is 0.
local function add_to(field, change)
  if change ~= 0 and redis.call('HINCRBY', KEYS[4], field, change) <= 0 then redis.call('HDEL', KEYS[4], field) end
end

-- Adds to the sum.
local function add_usage(messages, bytes)
  add_to('messages', messages)
  add_to('bytes', bytes)
end

-- Adds to a figure that lies beside the sum and does not fall below 0; by how much it changed.
local function add_to_part(field, change)
  local former = tonumber(redis.call('HGET', KEYS[4], field) or 0)
  local figure = math.max(0, former + change)
  if figure > 0 then
    redis.call('HSET', KEYS[4], field, figure)
  elseif former > 0 then
    redis.call('HDEL', KEYS[4], field)
  end
  return figure - former
end

-- Removes figures of a queue; the change of the sum.
local function drop_figures(q, ...)
  local change = 0
  for _, figure in ipairs(redis.call('HMGET', q.state, ...)) do change = change - tonumber(figure or 0) end
  if change < 0 then redis.call('HDEL', q.state, ...) end
  return change
end

-- Of messages that are about to go. `size` of each: bytes of its body, where they are known.
local function uncount(q, messages)
  local state = redis.call('HMGET', q.state, 'from', 'stored', 'bytes')
  if not state[1] then return end
  local from, stored, bytes = tonumber(state[1]), tonumber(state[2] or 0), tonumber(state[3] or 0)
  local left, left_bytes = stored, bytes
  for _, m in ipairs(messages) do
    if m.sequence > from then
      left = left - 1
      left_bytes = left_bytes - OVERHEAD - (m.size or redis.call('HSTRLEN', q.bodies, m.member))
    end
  end
  if left == stored then return end
  -- A server of an earlier version may have stored some of them meanwhile.
  if left <= 0 or left_bytes < 0 then left, left_bytes = math.max(0, left), 0 end
  redis.call('HSET', q.state, 'stored', left, 'bytes', left_bytes)
  add_usage(left - stored, left_bytes - bytes)
end

-- Takes messages away for good.
local function remove(q, messages)
  if #messages == 0 then return end
  uncount(q, messages)
  local members, ids, held = {}, {}, {}
  for i, m in ipairs(messages) do
    members[i], ids[i] = m.member, id_of(m.record)
    if m.claim ~= '' then held[#held + 1] = m.member end
  end
  put('ZREM', q.avail, members)
  put('ZREM', q.order, members)
  put('ZREM', q.expiry, members)
  put('HDEL', q.records, members)
  put('HDEL', q.bodies, members)
  put('HDEL', q.ids, ids)
  if #held > 0 then
    put('ZREM', q.claimed, held)
    remove_from_claims(q, messages)
  end
end

-- The larger of now and a last moment that is to be believed.
local function risen(last, now) return last > now + FALSE_FUTURE and now or math.max(now, last) end

-- The members that are on a claim's list, as a set: a string of thousands is not to be searched for each of them.
local function on_list(q, claim)
  local list, found = redis.call('HGET', q.claims, claim) or '', {}
  for at = 1, #list, DIGITS do found[string.sub(list, at, at + DIGITS - 1)] = true end
  return found
end

-- Those of the messages that a commit is going to delete, by member: their records name claims on whose lists they are
-- not any more.
local function reserved(q, messages)
  local found, lists = {}, {}
  for _, m in ipairs(messages) do
    if m.claim ~= '' then
      lists[m.claim] = lists[m.claim] or on_list(q, m.claim)
      found[m.member] = not lists[m.claim][m.member]
    end
  end
  return found
end

-- Has such messages count as claimed for ever, and never become available.
local function reserve(q, members)
  local far = {}
  for i, member in ipairs(members) do far[2 * i - 1], far[2 * i] = RESERVED, member end
  put('ZADD', q.avail, far)
  put('ZADD', q.claimed, far)
end

-- Up to `limit` ready messages in the order of (available, sequence). The expired ones in front are removed.
-- Second result: there may be more, but so many had expired that this call has done enough. Third: how many it removed.
local function take(q, limit, now)
  local live, stepped, want = {}, 0, limit
  while true do
    local members = redis.call('ZRANGE', q.avail, '-inf', now, 'BYSCORE', 'LIMIT', #live, want)
    local expired, taken, messages = {}, {}, load(q, members)
    local held = reserved(q, messages)
    for _, m in ipairs(messages) do
      if held[m.member] then
        taken[#taken + 1] = m.member
      elseif m.expires <= now then
        expired[#expired + 1] = m
      elseif #live < limit then
        live[#live + 1] = m
      end
    end
    remove(q, expired)
    reserve(q, taken)
    stepped = stepped + #expired + #taken
    if #live == limit or #members < want then return live, false, stepped end
    if stepped >= STEPS then return live, true, stepped end
    want = math.max(limit - #live, 100)
  end
end

-- Puts a message under a claim that starts now, and lengthens a life that would end before it (Lease.extend).
-- `wait`: ms from the claim's end until it is available.
local function put_under(m, claim, now, lease, grace, wait)
  local ends = now + lease * 1000
  m.claim, m.claimed, m.lease, m.ends, m.available = claim, now, lease, ends, ends + wait
  if m.expires < ends then
    m.ttl, m.expires, m.extended = lease + grace, ends + grace * 1000, true
  end
end

-- Writes changed messages and their index entries; returns the new records.
local function rewrite(q, messages)
  local records, packed, avail, claimed, free, expiry = {}, {}, {}, {}, {}, {}
  for i, m in ipairs(messages) do
    local n = 2 * i - 1
    packed[i] = pack(m)
    records[n], records[n + 1] = m.member, packed[i]
    avail[n], avail[n + 1] = m.available, m.member
    if m.claim ~= '' then
      claimed[#claimed + 1] = m.ends
      claimed[#claimed + 1] = m.member
    else
      free[#free + 1] = m.member
    end
    if m.extended then
      expiry[#expiry + 1] = m.expires
      expiry[#expiry + 1] = m.member
    end
  end
  put('HSET', q.records, records)
  put('ZADD', q.avail, avail)
  put('ZADD', q.claimed, claimed)
  put('ZREM', q.claimed, free)
  put('ZADD', q.expiry, expiry)
  return packed
end

-- All that a live claim holds, in sequence.
local function held(q, claim, now)
  local list, members, live = redis.call('HGET', q.claims, claim) or '', {}, {}
  for at = 1, #list, DIGITS do members[#members + 1] = string.sub(list, at, at + DIGITS - 1) end
  table.sort(members)
  for _, m in ipairs(load(q, members)) do
    if m.ends > now then live[#live + 1] = m end
  end
  return live
end

-- Those of the ids that live in the queue.
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

-- The first of the values in these fields of a hash: those that have `most` bytes together, but one at least.
local function portion(key, fields, most)
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

-- The first of the messages, with their bodies, which have `most` bytes together; but one at least.
local function with_bodies(q, messages, most)
  local members, found = {}, {}
  for i, m in ipairs(messages) do members[i] = m.member end
  for i, body in ipairs(portion(q.bodies, members, most)) do
    found[i] = messages[i]
    found[i].body, found[i].size = body, #body
  end
  return found
end

-- Records with the bodies that belong to them, as a reply behind what `pieces` holds already.
local function answer(records, bodies, pieces)
  for i, body in ipairs(bodies) do add_message(pieces, records[i], body) end
  return table.concat(pieces)
end

-- The same of messages that have theirs.
local function answer_with(messages, pieces)
  for _, m in ipairs(messages) do add_message(pieces, m.record, m.body) end
  return table.concat(pieces)
end
