-- empty.lua: nothing, the yardstick of what any script costs.
return 1
