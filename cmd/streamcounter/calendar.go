package main

import _ "time/tzdata" // for windows of the calendar, on machines without time zones
