-- SPDX-License-Identifier: Apache-2.0
-- Code that scripts of several files share.

---- part shared

-- Precedes each script on queues. Before it, FALSE_FUTURE and OVERHEAD are defined: ms ahead of now from which a
-- queue's last available-at counts as wrong, and the bytes that a message counts in addition to its body. layout.py
-- describes the keys.

local PER_MS = 16           -- minimum increase of a queue's sequences per ms: see decision 0011
local MAX_BY_CLOCK = 9e13

-- Returns the last assigned sequence, or the sequence of the current time if it is higher.
local function counted(sequence, start, now) return math.max(sequence, math.min(now * PER_MS - start, MAX_BY_CLOCK)) end

-- The entry of a queue's stream is the message as posted; its state contains all later changes: see layout.py.
local ENTRY = '>BI6I8I8I8I4I2I2I2'
local ENTRY_SIZE = 41
local DRAFT_FRONT = 7       -- bytes of an entry that a draft does not have
local SIZES_AT = 36         -- offset of the lengths of id, client and `more`
local MORE = '>I8I4I2I2I2'  -- with TAIL: see layout.py
local TAIL = '>I8I4'
local LARGE = 1024          -- minimum size of bodies that are stored outside the stream
local MEMBER = '>I6'        -- a sequence as a set member, a hash field, and in the list of a claim
local MEMBER_SIZE = 6
local GROUPING = '\0'       -- prefix of a queue's name: the field with its grouping
local HOLDER = '\0'         -- prefix of a claim's id: the field with its holder; earlier versions left it
local MIXED = '\0\0'        -- prefix of a claim's id: the field exists if its messages may have different ends

local SLICE = 2000          -- maximum number of arguments of a command, because Lua's stack is limited
local STEPS = 1000          -- maximum number of entries that one call skips
local READY = 'zq:ready'    -- channel for the names of queues that received messages

local argument_at, key_at = 0, 14

-- Returns the next element of ARGV, as a string or as a number.
local function argument()
  argument_at = argument_at + 1
  return ARGV[argument_at]
end

local function number() return tonumber(argument()) end

-- Returns the index of the next `count` keys after project and queue.
local function keys(count)
  local first = key_at + 1
  key_at = key_at + count
  return first
end

-- Returns the keys of the queue whose first key is KEYS[at].
local function queue_at(at)
  return {
    state = KEYS[at], avail = KEYS[at + 1], stream = KEYS[at + 2], expiry = KEYS[at + 3], claimed = KEYS[at + 4],
    states = KEYS[at + 5], bodies = KEYS[at + 6], ids = KEYS[at + 7], claims = KEYS[at + 8], line = KEYS[at + 9],
  }
end

-- Returns the queue's name from a full name, which also contains the project; see layout.encode_full_name.
local function name_of(full) return string.sub(full, 5 + struct.unpack('>I4', full)) end

-- Returns the queue's metadata if they differ from the expected ones ("" = any), else nil.
local function other_metadata(name, expected)
  if expected == '' then return nil end
  local metadata = redis.call('HGET', KEYS[2], name) or '{}'
  return metadata ~= expected and metadata or nil
end

-- Notifies listeners. A missing permission must not abort a change.
local function notify(full) redis.pcall('PUBLISH', READY, full) end

-- Runs a write command with any number of arguments. Returns the sum of the replies.
local function put(command, key, arguments)
  local sum = 0
  for first = 1, #arguments, SLICE do
    sum = sum + redis.call(command, key, unpack(arguments, first, math.min(first + SLICE - 1, #arguments)))
  end
  return sum
end

-- Runs HMGET with any number of fields.
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

-- Returns the ids, each preceded by its length, as replies contain them.
local function listed_ids(ids)
  local pieces = {}
  for i, id in ipairs(ids) do pieces[i] = struct.pack('>I2', #id) .. id end
  return table.concat(pieces)
end

-- Returns the larger of now and a plausible last time.
local function risen(last, now) return last > now + FALSE_FUTURE and now or math.max(now, last) end

-- The usage of a project is a sum of counters: for each queue the number of messages (`stored`) and their `bytes`, the
-- bytes `kept` in its history, staged messages, and idempotency results. A counter and the sum change in the same step
-- as the data. Messages and history entries that an earlier version did not count have sequences up to a queue's
-- `from`.

local ANSWERED = 'answers:'  -- prefix of a queue's name: the counter of its idempotency results

-- Adds to a field of the sum. A field that becomes 0 is removed.
local function add_to(field, change)
  if change ~= 0 and redis.call('HINCRBY', KEYS[4], field, change) <= 0 then redis.call('HDEL', KEYS[4], field) end
end

-- Adds to the sum.
local function add_usage(messages, bytes)
  add_to('messages', messages)
  add_to('bytes', bytes)
end

-- Adds to a counter outside the sum, which does not become negative. Returns the change.
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

-- Removes the counters of a queue. Returns the change of the sum.
local function drop_figures(q, ...)
  local change = 0
  for _, figure in ipairs(redis.call('HMGET', q.state, ...)) do change = change - tonumber(figure or 0) end
  if change < 0 then redis.call('HDEL', q.state, ...) end
  return change
end

