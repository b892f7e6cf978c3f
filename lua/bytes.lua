-- bytes.lua: numbers as bytes, the highest first.
--
-- include: prelude

-- number_text gives a number of so many bytes.
local function number_text(x, bytes)
  local t = {}
  for i = bytes, 1, -1 do
    t[i] = x % 256
    x = (x - t[i]) / 256
  end
  return string.char(unpack(t))
end
