"""Between devices and server: messages, validation, stages (clip, noise, secure and robust sums), accounting."""
