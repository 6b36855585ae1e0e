"""Make what docker/compose.secure.yaml keeps secret, the first time: certificates, and the password of the programs.

The broker's volume gets all of it. The programs' volume gets what a client needs, and not the broker's key. Both are
mounted as /security where they are used, so that the paths in the files hold there.
"""

import os
import shutil
from pathlib import Path

from stream.devkafka.security import LocalSecurity

BROKER_UID = 1000  # of the image apache/kafka
PROGRAM_UID = 10001  # of Onebit's image
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
