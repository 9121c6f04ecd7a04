"""What crosses between a device and the server: messages, their size, and what is refused at the door."""
