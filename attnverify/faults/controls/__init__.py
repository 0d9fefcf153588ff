"""Controls: right implementations that compute in unusual ways."""
