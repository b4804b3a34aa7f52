"""`python -m gossipdp` is the `gossipdp` command."""

from gossipdp.launch import main

raise SystemExit(main())
