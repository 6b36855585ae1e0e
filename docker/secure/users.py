"""Create the user and the ACLs in the Kafka cluster of docker/compose.secure.yaml.

This script connects with the broker's certificate, because no other client has permissions at first.
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
# All programs share one user, which has all permissions on resources whose names start with the prefix.
# docs/security.md lists the minimal permissions of each program.
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
    raise SystemExit(f"cannot create the ACLs of {security.user}: {done['failed']}")
admin.close()
print(f"created user {security.user} ({ScramMechanism.SCRAM_SHA_512.name}) with all permissions on {prefix}*")
