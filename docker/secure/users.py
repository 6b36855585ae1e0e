"""Tell the Kafka of docker/compose.secure.yaml who the programs are, and what they may do.

This runs as the broker, by its certificate, since at first nobody else may do anything.
"""

import os
from pathlib import Path

from kafka import KafkaAdminClient
from kafka.admin import (
    ACL,
    ACLOperation,
    ACLPermissionType,
    ACLResourcePatternType,
    ResourcePattern,
    ResourceType,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from stream.devkafka.security import LocalSecurity

security = LocalSecurity(Path("/"), user="onebit")
prefix = os.environ.get("ONEBIT_TOPIC_PREFIX", "onebit.")
admin = KafkaAdminClient(bootstrap_servers="kafka:19093", security_protocol="SSL", ssl_context=security.own_context())
password = security.password().encode()
admin.alter_user_scram_credentials(
    [UserScramCredentialUpsertion(security.user, ScramMechanism.SCRAM_SHA_512, password)]
)
# One user for all programs, who may do everything with what begins with the prefix. docs/security.md has the least
# that each needs.
done = admin.create_acls(
    [
        ACL(
            f"User:{security.user}", "*", ACLOperation.ALL, ACLPermissionType.ALLOW,
            ResourcePattern(kind, prefix, ACLResourcePatternType.PREFIXED),
        )
        for kind in (ResourceType.TOPIC, ResourceType.GROUP, ResourceType.TRANSACTIONAL_ID)
    ]
)  # fmt: skip
if done["failed"]:
    raise SystemExit(f"the ACLs of {security.user} were not made: {done['failed']}")
admin.close()
print(f"{security.user} comes in by {ScramMechanism.SCRAM_SHA_512.name}, and may do all with what begins with {prefix}")
