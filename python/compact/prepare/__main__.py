# SPDX-License-Identifier: Apache-2.0
import pathlib
import sys

if __package__:
    from .command import main
else:  # as a folder, without the package around it, which loads the library
    sys.path[0] = str(pathlib.Path(__file__).resolve().parents[1])
    sys.path.append(sys.path.pop(0))
    from prepare.command import main

sys.exit(main())
