-- SPDX-License-Identifier: Apache-2.0
-- Part of scripts that have the oldest batches of a log fall off; log.lua comes before it.

local MOST_GONE = 32       -- batches that have fallen off which a publish removes at most,
local MOST_READ = 1048576  -- and after how many bytes of them it stops: they have to be read

-- published: messages and bytes ever; fallen: those before the first batch that is kept; removed: what is dropped up to
-- there is not in the stream any more.
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

-- The first batch whose last sequence is `sequence` or more.
local function batch_from(log, sequence)
  local entry = redis.call('XRANGE', log.stream, entry_id(sequence), '+', 'COUNT', 1)[1]
  return entry and opened(entry[2][1])
end

-- Finds where what is kept begins, once it is `slack` times as much as is to be kept. The newest batch stays.
local function fall(log, counts, bytes, messages, slack)
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

-- Removes what has fallen off, so many batches at most; how many.
local function remove_fallen(log, counts, most)
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
