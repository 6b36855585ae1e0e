"""Create the certificates and the programs' password for docker/compose.secure.yaml at the first start.

The broker's volume contains all of these files. The programs' volume contains only the files that a client needs,
without the broker's key. Both volumes are mounted at /security, the path used in the files.
"""

import os
import shutil
from pathlib import Path

from stream.devkafka.security import LocalSecurity

BROKER_UID = 1000  # user id in the image apache/kafka
PROGRAM_UID = 10001  # user id in Onebit's image
CLIENTS = Path("/clients")

security = LocalSecurity(Path("/"), user="onebit", names=("kafka", "localhost"))
if not security.exists:
    security.make()
for file in (security.client_config, security.ca):
    shutil.copy(file, CLIENTS)
for folder, uid in ((security.folder, BROKER_UID), (CLIENTS, PROGRAM_UID)):
    folder.chmod(0o700)
    for path in (folder, *folder.iterdir()):
        os.chown(path, uid, uid)
