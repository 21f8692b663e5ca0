-- SPDX-License-Identifier: Apache-2.0
-- Part of scripts on a project's stages and producers. stages.py draws what they keep.

local STAGE = '>I8I8I4'
local STAGED_QUEUE = '>I8I4'
local PRODUCER = '>I8I8I8'

-- The next seven keys, which the project has for transactions.
local function transactions()
  local at = keys(7)
  return {
    fences = KEYS[at], producers = KEYS[at + 1], producing = KEYS[at + 2], stages = KEYS[at + 3],
    staging = KEYS[at + 4], open = KEYS[at + 5], phase = KEYS[at + 6],
  }
end

-- A stage: when it expires, bytes of its bodies, its queues' names with the least ttl in each. nil if it is gone.
local function staged(packed, now)
  if not packed or struct.unpack(STAGE, packed) <= now then return nil end
  local stage, count, at = { queues = {} }, nil, nil
  stage.expires, stage.bytes, count, at = struct.unpack(STAGE, packed)
  for i = 1, count do
    local least, length, first = struct.unpack(STAGED_QUEUE, packed, at)
    at = first + length
    stage.queues[i] = { least = least, name = string.sub(packed, first, at - 1) }
  end
  return stage
end

local function drop(t, name, content)
  redis.call('HDEL', t.stages, name)
  redis.call('ZREM', t.staging, name)
  redis.call('UNLINK', content)
end
