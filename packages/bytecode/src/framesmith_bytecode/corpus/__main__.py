"""`python -m framesmith_bytecode.corpus [DIRECTORY...]`; exits with 1 if anything failed."""

import sys

from framesmith_bytecode.corpus.run import main

sys.exit(main(sys.argv[1:]))
