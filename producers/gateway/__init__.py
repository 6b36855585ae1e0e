"""The gateway: decisions and feedback over HTTP."""
