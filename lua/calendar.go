package lua

// Calendar is the algorithm that counts the windows of the calendar.
const Calendar = "calendar"

var calendar = Algorithm{Name: Calendar, Form: Calendar}
