"""What tests of a service need: pipelines to talk to, on a real Kafka or in virtual time. docs/testing.md tells how."""
