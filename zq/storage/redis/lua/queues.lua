-- SPDX-License-Identifier: Apache-2.0
-- Queues: their metadata and contents.

---- script queue_create

-- Creates a queue. KEYS: project, queue, documents. ARGV: the guard, see `guarding`; name, metadata, grouping ("":
-- none), kind of its messages. Returns 1; returns 0 without a change if the queue exists.

local refused = outdated()
if refused then return refused end
if redis.call('EXISTS', KEYS[5]) == 1 then return 0 end
local name, metadata, grouping, kind = argument(), argument(), argument(), argument()
create(queue_at(5), name, metadata)
if grouping ~= '' then
  redis.call('HSET', KEYS[2], GROUPING .. name, grouping)
  redis.call('HSET', KEYS[5], 'grouping', kind)
end
return 1

---- script queue_update

-- Replaces the metadata if they have the expected value. KEYS: project, queue. ARGV: name, expected, metadata. Returns
-- 1, else 0.

if redis.call('HGET', KEYS[2], ARGV[1]) ~= ARGV[2] then return 0 end
redis.call('HSET', KEYS[2], ARGV[1], ARGV[3])
return 1

---- script queue_list: no-writes

-- Lists queues. KEYS: project, queue (not used). ARGV: start of the names as for ZRANGE BYLEX, limit. Returns names,
-- then their metadata, then their groupings.

local names = redis.call('ZRANGE', KEYS[1], ARGV[1], '+', 'BYLEX', 'LIMIT', 0, ARGV[2])
local fields = {}
for i, name in ipairs(names) do fields[i] = GROUPING .. name end
return { names, pick(KEYS[2], names), pick(KEYS[2], fields) }

---- script queue_delete: allow-oom

-- Removes a queue with its contents. KEYS: project, queue, documents, idempotency results, history. ARGV: the guard, see
-- `guarding`; name, expected last sequence (-1: any). Returns 1; returns 0 without a change if the queue has another
-- last sequence. The floor makes sequences of later queues higher than the sequences of this one (L6).

local refused = outdated()
if refused then return refused end
local name, expected = argument(), number()
local sequence = tonumber(redis.call('HGET', KEYS[5], 'sequence') or 0)
if expected >= 0 and expected ~= sequence and redis.call('EXISTS', KEYS[5]) == 1 then return 0 end
if sequence > tonumber(redis.call('GET', KEYS[3]) or 0) then redis.call('SET', KEYS[3], sequence) end
add_usage(drop_figures(queue_at(5), 'stored'), drop_figures(queue_at(5), 'bytes', 'kept'))
add_usage(0, add_to_part(ANSWERED .. name, -math.huge))
redis.call('ZREM', KEYS[1], name)
redis.call('HDEL', KEYS[2], name, GROUPING .. name)
redis.call('UNLINK', unpack(KEYS, 5, 14))
redis.call('UNLINK', unpack(KEYS, 16))
return 1

---- script queue_purge: allow-oom

-- Removes all messages and claims of a queue. KEYS: project, queue. Returns "".

local q = queue_at(5)
add_usage(drop_figures(q, 'stored'), drop_figures(q, 'bytes'))
redis.call('UNLINK', unpack(KEYS, 6, 14))
return ''

---- script queue_stats: no-writes

-- Returns the stats of a queue. KEYS: project, queue. ARGV: now, sequences at which to continue the search for the
-- oldest and the newest message. Returns the counts of claimed and free messages, the number of messages that have
-- entered (-1: the queue does not exist), then for oldest and newest the message or "", and the sequence to continue
-- from if the call has examined its maximum number of expired messages, else 0.

local q, now = queue_at(5), tonumber(ARGV[1])

-- Returns the first live message from a sequence on, without its body; ascending with XRANGE, descending with
-- XREVRANGE.
local function edge(command, from, to, forward)
  local steps, want = 0, 1
  while true do
    local messages = parsed(q, redis.call(command, q.stream, from, to, 'COUNT', want))
    for _, m in ipairs(messages) do
      if m.expires > now then
        return front_of(m.state) .. string.sub(m.value, 1, head_of(m)), 0
      end
    end
    if #messages < want then return '', 0 end
    local last = messages[#messages].sequence
    steps = steps + #messages
    if steps >= STEPS then return '', last end
    from, want = last + forward, 100
  end
end

local claimed = redis.call('ZCOUNT', q.claimed, '(' .. ARGV[1], '+inf')
local total = redis.call('ZCARD', q.expiry) - redis.call('ZCOUNT', q.expiry, '-inf', now)
local oldest, above = edge('XRANGE', tonumber(ARGV[2]) + 1, '+', 1)
local newest, below = edge('XREVRANGE', ARGV[3] == '+inf' and '+' or tonumber(ARGV[3]) - 1, '-', -1)
local sequence, entered = unpack(redis.call('HMGET', q.state, 'sequence', 'entered'))
return { claimed, total - claimed, sequence and tonumber(entered or 0) or -1, oldest, above, newest, below }

---- script ready: allow-oom

-- Counts ready messages, if `most` is above 0. KEYS: project, queue. ARGV: now, most, full name of the queue. Returns
-- their number (-1: the call has processed its maximum number of expired messages or lapsed claims), the number of
-- removed messages, and the next time at which a message becomes ready, or "".

local q, now, most = queue_at(5), number(), number()
q.full = argument()

-- Returns the earliest time at which a claimed message becomes ready: the end of its claim or later.
local function first_lapse()
  local first, size = math.huge, 16
  for from = 0, STEPS - 1, size do
    local entries, members = redis.call('ZRANGE', q.claimed, from, from + size - 1, 'WITHSCORES'), {}
    for i = 1, #entries, 2 do members[#members + 1] = entries[i] end
    for i, state in ipairs(pick(q.states, members)) do
      local ends = tonumber(entries[2 * i])
      if ends >= first or ends == RESERVED then return first end
      first = math.min(first, (unpacked('>I8', state)))
    end
    if #members < size then break end
  end
  return first
end

-- `other`: the next available-at in the lane.
local function later(other)
  local bounds = { '(' .. ARGV[1], '(' .. RESERVED, 'BYSCORE', 'LIMIT', 0, 1, 'WITHSCORES' }
  local listed = redis.call('ZRANGE', q.avail, unpack(bounds))[2]
  local first = math.min(tonumber(listed or math.huge), other or math.huge, first_lapse())
  return first < math.huge and string.format('%.0f', first) or ''
end

if lapse(q, now) then return { -1, 0, '' } end
local expired = {}
if most > 0 then
  expired = load(q, redis.call('ZRANGE', q.expiry, '-inf', ARGV[1], 'BYSCORE', 'LIMIT', 0, STEPS))
  remove(q, expired, now)
  if #expired == STEPS then return { -1, STEPS, '' } end
end
local count, other = count_lane(q, now)
if most == 0 then return { 0, 0, later(other) } end
if not count then
  local found = take_lines(q, most, now)
  local again = found.more and found.expired > 0
  return { again and -1 or #found.live, #expired + found.expired, later() }
end
return { redis.call('ZCOUNT', q.avail, '-inf', ARGV[1]) + count, #expired, later(other) }

---- script depth: no-writes

-- Returns the depth of a queue. KEYS: project, queue. ARGV: now, maximum number of entries to skip. Returns the counts
-- of ready, delayed, claimed and expired messages, and the time since which the first message has been ready, or -1. If
-- more messages have expired than may be skipped, the others are counted as available.

local q, now, most = queue_at(5), number(), number()
local expired = redis.call('ZCOUNT', q.expiry, '-inf', now)
local living = redis.call('ZCARD', q.expiry) - expired
local claimed = redis.call('ZCOUNT', q.claimed, '(' .. now, '+inf')
local listed = redis.call('ZCOUNT', q.avail, '-inf', now)
local lane = count_lane(q, now)

-- Counts a grouped queue by its first messages; later messages are counted as ready.
local function among_first()
  local delayed, first = 0, math.huge
  local count = math.max(1, math.min(most, STEPS))
  for _, m in ipairs(parsed(q, redis.call('XRANGE', q.stream, '-', '+', 'COUNT', count))) do
    local is_free = m.expires > now and m.ends <= now
    if is_free and m.available > now then delayed = delayed + 1 end
    if is_free and m.available <= now then first = math.min(first, m.available) end
  end
  local ready = math.max(0, living - claimed - delayed)
  return { ready, delayed, claimed, expired, ready > 0 and first < math.huge and first or -1 }
end

if not lane then return among_first() end
local available, soonest = listed + lane, math.huge
local early = 0             -- expired messages that are not available yet; no other count includes them
-- Counts messages that are still in `claimed` although their claims have ended.
for _, state in ipairs(pick(q.states, redis.call('ZRANGE', q.claimed, '-inf', now, 'BYSCORE', 'LIMIT', 0, most))) do
  local moment, expires = unpacked('>I8I8', state)
  if moment <= now then available = available + 1 end
  if moment <= now and expires > now then soonest = math.min(soonest, moment) end
  if moment > now and expires <= now then early = early + 1 end
end

for first = 0, math.min(expired, most) - 1, SLICE do
  local last = math.min(first + SLICE, expired, most) - 1
  for _, moment in ipairs(redis.call('ZMSCORE', q.avail, unpack(redis.call('ZRANGE', q.expiry, first, last)))) do
    if moment and tonumber(moment) > now then early = early + 1 end
  end
end
local ready = math.max(0, available - expired + early)

-- Returns the available-at of the first live message in `avail`, or of the last one examined, or an earlier one from
-- elsewhere.
local function first_ready()
  local moment, found, at, size = -1, false, 0, 1
  while not found and at < math.min(listed, most) do
    local entries, members = redis.call('ZRANGE', q.avail, at, at + size - 1, 'WITHSCORES'), {}
    for i = 1, #entries, 2 do members[#members + 1] = entries[i] end
    for i, expires in ipairs(redis.call('ZMSCORE', q.expiry, unpack(members))) do
      moment = tonumber(entries[2 * i])
      if tonumber(expires) > now then found = true; break end
    end
    at, size = at + size, 100
  end
  local first = first_of_lane(q, now, math.max(1, most))
  soonest = math.min(soonest, first and first.available or math.huge)
  return soonest < math.huge and (not found or soonest < moment) and soonest or moment
end

local waiting = math.max(0, living - claimed - ready)
return { ready, waiting, claimed, expired, ready > 0 and first_ready() or -1 }
