"""What each way to train costs on a given network, and which settings suit it: `gossipdp plan`.

`network` has what the user says, `running` what a live network says. `clock` asks the laboratory how long rounds last.
`choice` chooses each way's round, `memory` has the bytes on a host, `advice` the words, and `show` prints.
"""
