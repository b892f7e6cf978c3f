package alerts

// Message is what Publish sends.
var Message = message
