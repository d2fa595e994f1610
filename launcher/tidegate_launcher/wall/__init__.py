"""The wall: nftables rules at the gate's end of a link, and around who is the gate; put up, checked, watched."""
