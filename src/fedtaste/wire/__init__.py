"""The wire between devices and server: messages, validation, stages (clipping, noise, secure and robust sums), epsilon."""
