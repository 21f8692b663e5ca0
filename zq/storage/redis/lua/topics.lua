-- SPDX-License-Identifier: Apache-2.0
-- Published messages: one log per project.

---- part log

-- Part of scripts on a project's log. batches.py describes its layout.

local LOG_KEYS = 5
local LOG_DIGITS = 16
local FRONT = '>I4I8I8I8I8I8'

-- Returns the keys of the log whose first key is KEYS[at].
local function log_at(at)
  return {
    stream = KEYS[at], counts = KEYS[at + 1], topics = KEYS[at + 2], fading = KEYS[at + 3], purged = KEYS[at + 4],
  }
end

local function digits(sequence) return string.format('%0' .. LOG_DIGITS .. '.0f', sequence) end

local function entry_id(sequence) return string.format('%.0f-0', sequence) end

-- Returns the prefix of the fronts of a topic's batches, which no other topic has.
local function heading(topic) return struct.pack('>I2', #topic) .. topic end

-- Returns the batch in a front.
local function opened(front)
  local length = struct.unpack('>I2', front)
  local batch = { topic = string.sub(front, 3, 2 + length) }
  batch.place = string.sub(front, 3 + length, 2 + length + LOG_DIGITS)
  batch.last = tonumber(batch.place)
  batch.count, batch.created, batch.soonest, batch.latest, batch.messages, batch.bytes =
    struct.unpack(FRONT, front, 3 + length + LOG_DIGITS)
  return batch
end

-- Returns the fronts of a topic's batches with sequences above `after`, by sequence.
local function fronts(log, topic, after, count)
  local head = heading(topic)
  local from, to = '[' .. head .. digits(after + 1), '(' .. head .. ':'
  return redis.call('ZRANGE', log.topics, from, to, 'BYLEX', 'LIMIT', 0, count)
end

-- Returns the messages of the batch with this last sequence, or nil if it does not exist.
local function messages_of(log, last)
  local entry = redis.call('XRANGE', log.stream, entry_id(last), entry_id(last))[1]
  return entry and entry[2][2]
end

-- Notifies listeners of the project. A missing permission must not abort a change.
local function notify_log(channel, content) redis.pcall('SPUBLISH', channel, content) end

-- Adds a batch to the pieces of a reply.
local function add_batch(pieces, front, messages)
  local n = #pieces
  pieces[n + 1], pieces[n + 2], pieces[n + 3] = struct.pack('>I4', #messages), front, messages
end

-- Removes batches, by their fronts.
local function discard(log, gone)
  if #gone == 0 then return end
  local ids = {}
  for i, front in ipairs(gone) do ids[i] = entry_id(opened(front).last) end
  redis.call('XDEL', log.stream, unpack(ids))
  redis.call('ZREM', log.topics, unpack(gone))
  redis.call('ZREM', log.fading, unpack(gone))
end

---- part trimming

-- Part of scripts that trim the oldest batches of a log; `log` precedes it.

local MOST_GONE = 32       -- maximum number of trimmed batches that a publish removes,
local MOST_READ = 1048576  -- and number of their bytes after which it stops, because it must read them

-- published: total numbers of messages and bytes; fallen: those before the first retained batch; removed: the sequence
-- up to which dropped batches have been removed from the stream.
local COUNTS = { 'sequence', 'published', 'published_bytes', 'fallen', 'fallen_bytes', 'dropped', 'removed' }

local function counts_of(log)
  local counts = {}
  for i, value in ipairs(redis.call('HMGET', log.counts, unpack(COUNTS))) do
    counts[COUNTS[i]] = tonumber(value or 0)
  end
  return counts
end

local function keep_counts(log, counts)
  local terms = {}
  for i, name in ipairs(COUNTS) do terms[2 * i - 1], terms[2 * i] = name, counts[name] end
  redis.call('HSET', log.counts, unpack(terms))
end

-- Returns the first batch whose last sequence is `sequence` or more.
local function batch_from(log, sequence)
  local entry = redis.call('XRANGE', log.stream, entry_id(sequence), '+', 'COUNT', 1)[1]
  return entry and opened(entry[2][1])
end

-- Finds the first batch to retain if the log exceeds its retention `slack` times. The newest batch stays.
local function trim(log, counts, bytes, messages, slack)
  local function over(fallen, fallen_bytes, times)
    return counts.published - fallen > messages * times or counts.published_bytes - fallen_bytes > bytes * times
  end
  if not over(counts.fallen, counts.fallen_bytes, slack) then return end
  local low, high = counts.dropped + 1, counts.sequence
  while low < high do
    local middle = math.floor((low + high) / 2)
    local batch = batch_from(log, middle)
    if batch and batch.last < counts.sequence and over(batch.messages, batch.bytes, 1) then
      low = batch.last + 1
    else
      high = middle
    end
  end
  local oldest = batch_from(log, low)
  counts.dropped = low - 1
  counts.fallen = oldest and oldest.messages or counts.published
  counts.fallen_bytes = oldest and oldest.bytes or counts.published_bytes
end

-- Removes trimmed batches, up to a maximum number, and returns their number.
local function remove_trimmed(log, counts, most)
  local gone, read, from = {}, 0, '-'
  while counts.removed < counts.dropped and #gone < most and read < MOST_READ do
    local entry = redis.call('XRANGE', log.stream, from, entry_id(counts.dropped), 'COUNT', 1)[1]
    if entry then
      gone[#gone + 1], read, from = entry[2][1], read + #entry[2][2], '(' .. entry[1]
    else
      counts.removed = counts.dropped
    end
  end
  discard(log, gone)
  return #gone
end

---- script publish

-- Appends a batch to a project's log, and trims the oldest ones. KEYS: the log; idempotency results if the request has
-- a key. ARGV: now, topic, number of messages, bytes of bodies, first and last expiry, retention in bytes and messages,
-- the messages, the channel; with a key: key, digest, expiry. Returns the first sequence (8 bytes), and 1 if more
-- batches were trimmed than removed, else 0 (1 byte).

local SLACK = 1 + 1 / 16  -- the log is trimmed when it exceeds its retention by this factor
local PER_MS = 512        -- minimum increase of sequences per ms: see decision 0011
local MAX_BY_CLOCK = 9e15

local log, now, topic, count, size = log_at(1), tonumber(ARGV[1]), ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local messages = ARGV[9]
local once = #KEYS > LOG_KEYS and LOG_KEYS + 1
local repeated = once and known(once, ARGV[11], now)
if repeated then return repeated end

local counts = counts_of(log)
local former, dropped = counts.sequence, counts.dropped
local before = math.max(former, math.min(now * PER_MS, MAX_BY_CLOCK))
local last = before + count
local front = heading(topic) .. digits(last)
  .. struct.pack(FRONT, count, now, ARGV[5], ARGV[6], counts.published, counts.published_bytes)
redis.call('XADD', log.stream, entry_id(last), front, messages)
redis.call('ZADD', log.topics, 0, front)
redis.call('ZADD', log.fading, ARGV[6], front)
counts.sequence = last
counts.published, counts.published_bytes = counts.published + count, counts.published_bytes + size

trim(log, counts, tonumber(ARGV[7]), tonumber(ARGV[8]), SLACK)
remove_trimmed(log, counts, MOST_GONE)
keep_counts(log, counts)
if once then remember(once, ARGV[11], ARGV[12], ARGV[13], string.format('%.0f', before + 1)) end

local pieces = {}
add_batch(pieces, front, messages)
notify_log(ARGV[10], digits(former) .. table.concat(pieces))
local left = dropped < counts.dropped and counts.removed < counts.dropped
return struct.pack('>I8B', before + 1, left and 1 or 0)

---- script log_trim: allow-oom

-- Trims the oldest batches of a log without a publish, which a full store would reject. KEYS: the log. ARGV: retention
-- in bytes and messages. Returns the number of removed batches, and 1 if more must be removed.

local log = log_at(1)
local counts = counts_of(log)
if counts.published == 0 then return { 0, 0 } end
trim(log, counts, tonumber(ARGV[1]), tonumber(ARGV[2]), 1)
local gone = remove_trimmed(log, counts, MOST_GONE)
keep_counts(log, counts)
return { gone, counts.removed < counts.dropped and 1 or 0 }

---- script log_read: no-writes

-- Reads batches of a project's log that have messages with sequences above `after`. KEYS: the log. ARGV: after, number
-- of messages, bytes, number of batches to examine, their topic or "" for all. Returns the last sequence examined, the
-- last sequence of the log, and the last dropped one (8 bytes each); then the batches.

local MOST_TOGETHER = 64

local log, after, limit, most = log_at(1), tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local steps, topic = tonumber(ARGV[4]), ARGV[5]
local state = redis.call('HMGET', log.counts, 'sequence', 'dropped')
local last, dropped = tonumber(state[1] or 0), tonumber(state[2] or 0)

-- Returns the sequence up to which a topic was purged. It is read once per topic.
local floors = redis.call('EXISTS', log.purged) == 1 and {}
local function purged(name)
  if not floors then return 0 end
  floors[name] = floors[name] or tonumber(redis.call('HGET', log.purged, name) or 0)
  return floors[name]
end

-- Returns the next batches: fronts and messages.
local function look(position, count)
  local found = {}
  if topic == '' then
    local entries = redis.call('XRANGE', log.stream, entry_id(position + 1), '+', 'COUNT', count)
    for i, entry in ipairs(entries) do found[i] = entry[2] end
  else
    for i, front in ipairs(fronts(log, topic, position, count)) do found[i] = { front } end
  end
  return found
end

local position = math.max(after, dropped, topic == '' and 0 or purged(topic))
local pieces, looked, given, bytes, size, full = {}, 0, 0, 0, 1, false
while not full do
  local found = look(position, size)
  for _, entry in ipairs(found) do
    local batch = opened(entry[1])
    if purged(batch.topic) < batch.last then
      local messages = entry[2] or messages_of(log, batch.last)
      full = bytes > 0 and bytes + #messages > most
      if full then break end
      add_batch(pieces, entry[1], messages)
      bytes = bytes + #messages
      given = given + batch.last - math.max(after, batch.last - batch.count)
    end
    position, looked = batch.last, looked + 1
    full = given >= limit or looked >= steps
    if full then break end
  end
  if not full and #found < size then
    position, full = math.max(position, last), true
  end
  size = math.min(2 * size, MOST_TOGETHER)
end
return struct.pack('>I8I8I8', position, last, dropped) .. table.concat(pieces)

---- script topic_purge: allow-oom

-- Hides the current messages of a topic; active expiry removes them. KEYS: the log. ARGV: topic, channel. Returns "".

local log, topic = log_at(1), ARGV[1]
if #fronts(log, topic, 0, 1) > 0 then
  redis.call('HSET', log.purged, topic, redis.call('HGET', log.counts, 'sequence'))
end
notify_log(ARGV[2], '')
return ''

---- script topic_stats: no-writes

-- Counts the live messages of a topic. KEYS: the log. ARGV: now, topic, after. Returns the sequence to continue after,
-- "" at the end; the number of messages in batches without expired messages; the fronts of the first and the last of
-- these batches, or ""; batches in which some messages have expired.

local STEPS = 2000
local MOST_BYTES = 1048576  -- bytes of messages after which the script stops

local log, now, topic = log_at(1), tonumber(ARGV[1]), ARGV[2]
local dropped = tonumber(redis.call('HGET', log.counts, 'dropped') or 0)
local purged = tonumber(redis.call('HGET', log.purged, topic) or 0)
local found = fronts(log, topic, math.max(tonumber(ARGV[3]), dropped, purged), STEPS)
local free, oldest, newest, following, pieces, bytes = 0, '', '', '', {}, 0
for i, front in ipairs(found) do
  local batch = opened(front)
  if batch.soonest > now then
    free, newest = free + batch.count, front
    if oldest == '' then oldest = front end
  elseif batch.latest > now then
    local messages = messages_of(log, batch.last)
    add_batch(pieces, front, messages)
    bytes = bytes + #messages
  end
  if i == STEPS or bytes >= MOST_BYTES then
    following = batch.place
    break
  end
end
return { following, free, oldest, newest, table.concat(pieces) }
