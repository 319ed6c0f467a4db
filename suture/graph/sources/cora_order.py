"""The order in which Planetoid's Cora lists the papers of `cora.content`.

Planetoid shuffled the papers, so its order cannot be computed from the file; but the two graphs are the same graph, so
2708 row numbers are all that is missing. Found by matching each paper's words, class and citations; papers that match
in all three are interchangeable.
"""

from __future__ import annotations

import base64

import numpy as np

LABELS = (
    "Theory",
    "Reinforcement_Learning",
    "Genetic_Algorithms",
    "Neural_Networks",
    "Probabilistic_Methods",
    "Case_Based",
    "Rule_Learning",
)
"""Planetoid's class numbers, by position."""


def planetoid_order() -> np.ndarray:
    """int64 [2708]: which row of `cora.content` is Planetoid's node 0, 1, 2, ..."""
    return np.frombuffer(base64.b85decode(_ROWS), dtype="<u2").astype(np.int64)


_ROWS = (
    "GYP^0x&u@S0SER1GYDM<z6DkafeK*?i3)H5(Fs)rzy!1iYXgG;90KAAdj!@7e*hW=k_g)c+W`j#u?2qwL<0u}H36gpaRxsF<O!hwy9A{L^#&*i5C"
    "N0}&IqRhBmidv7zJ4g1qdewZv!_4Is|$JkOzDLbp!bX;Q_e<J_b+&oCP5Rk^&$F6$;M>rvuvn0R-"
    "O#Aqt@ZBnpQEGzkj<T>xAL^##`ll>!?Ft^qCu9SCaxGzbg@4hEnCY5>>?q6m%%)CRZ+umVE|H3z~4xCWX7`2aQo<p?bV?*L&1{|MFr{Q>a^hyY~-"
    "e+B9RWeAN3_695gRRC-Xk_t-"
    "*Q3mG*GXvuRsRRKD+yjRQb^s~@JpxP!s|juZu>r6FqXW+c>;fhNiUl|UcL>q}kpSlc=mJ;*HUZ=X<^UfDCkY?`(*#@xlLKu5Yyn>ftOFwo?*fwvI"
    "SHcz5&`Q0ivtq}oC1FbHwQKc+X;9FI|76RzXO2>xCBH8un6!1O$M(7Xas5r2?K2ejS3O~BLe{nv;koP(+QRX90TD7=mpFPLJ7D4g$9`dD*$!|wg&"
    "11QwUNBJqqgv{{g`SaRD#~00x@~ga*t2$^h5~83A+x(E(Qm-"
    "2le}2mqf3M+Z6uC<=TAEDD?n!~yjO4+uK|F9B!+X#>Xv2LP!C(*_I&MF(&Iy$S3EKmd{j8VCakF$uT@a|)CMJ_@D<>IFps^a%(8p$9t#eg~TY!v*"
    "&S;ss~{bp=HTi3JD-"
    "v;?~W;0aC%s0keh(FcqN(gj=ytN@+{%?1MiDhWgcH3BdQGy>HD!wEDB6$2;<Hvt&{uL5KVx&TcG1q9{<?gcpoT?04;$Or@k83OqQf&<Y7wFQ9)v<"
    "2<~2MU}B)BxiN4F<me_X*Sj_6WrVItSbWm<h!Q;sTukV+b_>775P=5el;ha0M#^6b8Ep%K|kD!UR1BHv=3Ahy&yX76caru?I2;0tJl&4+*RVl?O5"
    "dQ~`+qiUZaF*#VLVs|0NZUkP*sEeR<Gas(R)J_)7-"
    "fC$n9011i$a0b%@^aY*>^aAk(p9FvgX$K?&a|3w*IRyR#5e0h!<p7KZ{R5{7f(APWJPH&5p98)KwF#aFc>_!UKnD;A{{sgE9s_d$Fa<FMA_+1D01"
    "Al$aRr+I(*Ya@d<X~${sb)rc?S&$ZvlM(-vQkPJ_79rRR$0MYzdwN(gx-"
    "O)d*Jrnh3W7g#)Sx(g`mG<^d1`*aIj4w+F=nj0A!NbqJ~hHv|s@*8vFt%L!ry&<7_6J^`8q&Iv3AH3-83Zv-"
    "+1`~#c>$OEnemjE9C&IK|8dkF9aYY9RHy#fLVvjJNOS_TvWB?__v@&w%hd<vQZQv(bJ#s+`_lm|`$7YH^4r3BOk#sJ9(kqVFsjtW)+VF`T$IRQih"
    "0szYf?gO+3gaOI{8VX7YJp@_`vj&a;^Z;53jRMgECIIIEA_HFtm<3D%fCa1wcLhKS@dP3VVgs%P#sYZ-!~(kjTm*IpFA7Tm=>%K=&;c9;Qvu-"
    "v)&yw^&;u<1qy#Gg*9N))R0#YAq6KRR=>k0kxdtQ%h6jiSRt7T)8UzypBm(#bS_9b!fCRt+atToiN(7n!jRklGAqi&)3JMMZ3kdB6m<Zkl1_7uD@"
    "&Z-|)Ct)D^#Dx@00qJWB?+wwDFr<UJ_s!eo&nkg*ag`I4+NM1DF{0S{s~A3h611kL<-{rVFo<`z5zl2!T>D?T>&`;C<dwrvjeaP>;_-"
    "}uL*qxeg%^Sx&%f82?bjN;Rufbi~)=Z0R!#=*$9CEx(8MSZwFoqrUIM;V+I!n3<5j@i36DcY6!9k(ga`%!~=){90+U#t^hFr@Bx+tmImSgjR*Dsg"
    "9A|o!UtIbj0K7Z?f_E?j|M{l4hfA3RR<3O`3NimK?9ut>jORq>;nJ+)dW8WLI^DeYXk%ZPzM7AKn7|CH3h8!B?T7)GzNDAHU<L$0s-"
    "v+l?H(WeF+r^&I26<2M5Lkg#^3;F9ym5FayT~_6cSKkOTq>Wd+d#^9cI{4GK#KI|O+NzXFH?hXTe0vj|B8BLxQm$pA6{wE##3*8-"
    "9O$_GsVlK~$C1ppBT)dtf5zz4Sg-3D(4zyc5oY6Aue6AAVNg9Ppe+5!3nI0!iisRL&O{|7Y$-vgHg;0J&Si3#fk%?IQJ^a0fcX$g1(tOqm!a0ep-"
    "6bfMn908~Xv;&6#$O#V$>Ii)SVF;TBObHtVUI66*bOXu*rw51%aR~+jy9e$BA_UI_W&i^N!2-"
    "|(f(LK{I{_>NGXg6FO$3+%Y68Lr{Q`graR^rg4hJ~^DGB}v>I0GqPX`nODFI;vF900`-wEgkb_y~HVh4l@yaXQwa0z$`{RasOG6AszOb28K-2-"
    "R}<_L}iT>>Hkasn|50|GJ%G6&iR@c<<Vn*|RC5dwY&p#m=liv`yJUj`%xH3Luz@CkJWOa;FOCkiJ58vs!NlLiX~83bMenF-bivIQdvItf|?PzJsN"
    "xd>4KU;_6Ay#=rZlmgcTg$aoUBL>j~Iso1QqzG;WF9Z1oEdw|P+yEX2@d+gdfdXp^fCnQ1lmQY5UjtqUqy@?ZWdJMyd;^CE^9A||7y|GJhzHyTFb"
    "VwzvkA%w{{Vpj3;?eNp#y#bZvZX=g$N@E1ORpgZ3%k?zXXy1Oa^QS><CE)MF6)5bOp8tTM4xX&<V%_u?bZOA_0U2SOYfz#Q|>#X#yeukp~_IoClT"
    "(V*rK)R{~uLC<F2a3<^L5)(5BuK?JG^wg@2znh8Vz5(lOOcmcfw%>up$3j$3EJO)SsodVSZR08t^js+kJYX>F-"
    "3JGlk?gn58kphqcE&~Dw{QxWjqXEzbAqOr8qynl1TLAb3$p>%*qY1+YZVKZDi3h6)v;r6bvId9+tpjuinFCP-um%SLC;`L<s09WEI|?ia>Io(ViU"
    "ws0TLf$dK?*hs1_QJP$_9)8)dJ`NUkY>yI0B~uDgnC%%mir!x&`+LDhFT$tpsogpau#AM+VCS>;Yy9{sP?yxC6}y+XyZJ;0DGCxda&lumBGLuLm0"
    "j&;aKFLIVj0bq9e4-"
    "Uk>29RYj<CI>qRDFPb<8UvXIq6q>6F9=ElTm>Kp9tc+o!UFvT@d6qLOac1?7zRWL$OoAR^#ddZ*a(;dAp(mCP6Ox!Tm$C`+y#CL83uR;j|sg7dI2"
    "Q^#sL-u;s%-o5()+fTMBapLk0c;IS2a)h5;W0{|U<gL<VsOSq7Q`#{zT)Cj-"
    "R<WdS?@CI~SHng$gD0|&7NxB)*2dJ1v}iwDdD0RmqI;RlNZQU=!p`2iFJb_u}%as{CTI0HZdc?v56dI$sx`~rUpBm^=9#0QiJ-vC|&5ecgY!3Mkq"
    ";|EXx`v9Z{<q3iTM+0L4I0p>{;s;I&h6Z#9$Of(gQ3nwQ5C#$k#|9J#Mg;f+iV70|=LByGf&#AqCI-"
    "#`69mKn!vJ^+mI#jrRRkRXN&)BzM*zD5bO7!M>Id8hcM9(ba{`|QO#vbb8~|ScYXX!7?*}&tO9lP_HVIDvqX6#%W(1}OwFuq>-vp2YU;!rq4FHY-"
    "Ndg!OX9|A?tOi;KH~<L<@Bq68x&|=_779xVO9W&J+z7x3R0WFxegIGfmjXx%SqQEKo&@v<t_d*&=Lmucr3ilko&seFeFC`yWC8&ORRawH$ptzBK?"
    "OhsIRZWeZ3>+U^8@k&!v^XC4*{PEcLaC<L;*$tng?(LJ_QT}PYIj`^9h9tQwi4yXaGtDZUY1X*$LtV;{;Cy`~bQLq61C_X$B4g$pgs&Xa#2l?FJ_"
    "RzzG)suLyeydI>EEX#sr-"
    "=mQJ^Vg&jK003SGkpa&Mdja+Xz63l1AOrFTP6&<zY6k%Ttp}U{#s>!o3I=`yf(3&BAO<f4NeCYaXaao*v<W%^nE?_7bpe+Km<FE!Uj$+aC<L7YsR"
    "<1UfB~xj;s~h)ZwUMaCj<}&2MIw4nFUV)7YeZevIs5)2m^Hh<O8_}M*$fLh6<(t+5<cR9|5HaKmteyJpjc9769l5lnGe_$ponZlmJ8pPy$i{)d%e"
    "aUI8o#asiwHiv}qQq5u*Cgaa-B$OH=qkpv?E>jxkS<_1jzBnjIBGY1|3_y<u51Onp#Bn4>zjtQ~=9|j5tmI6ovISQ-"
    "+Mg{o^9t1)JI0XF!od^E}$N_-~_Xj8ikOi&=w*jgGfd!@roe0MXwF6oJ>jYT^jt3?K<pc-_h5#r6vjy!5KLp7JPXc5BpaU)m3k0qQ_X45>d;p^ar"
    "~^p}y#zf2j|9#J2mx{m)(KVs*9lk#n**K&Dh2oeV*_^y^aD)-"
    "l?Vv|lL)~9r3StLwF0ODHwKFdkO&tE&jCmVr~w%VSqEGJ+ytuv%>{b~NeZC`<N|*Qb^=2NQUj;}=?6gog#||l4gg04TL)JO69|wAGXY=*;sfgf*#"
    "y`GO9BK25dq)>lLGn#I|)k$jQ{`#HU*al4Fk0X1_UkywFJNhwgdwTTnW4Y)&pt;S^;qiV+CXdw*<ihDgY%0V+wNw7X=vwp8@>|e+b3{!vysLhXis"
    "476wuUDFl24%LwQQ_y}19$^u#f(+IHwItK3srU48I3ITxxQUrDZ!vWX<F#&`EtpG0q(*kV*d;;wP(g2?VrvS48KLW=A6#=aX2LpKmaRe9#{|0^uh"
    "6%w4%LfPta|enEaswLyXbCm|QVRS5{syoKiUH39vjBwvV*<qqPXx{aU<1hs+Xl=6><M%VLjoKI)Cd&`{slb-Ap!pdbpi+qNd-"
    "R$SO=*B1qq}FsR!u^7Xpa{p$TFLUIWqsX9u|f3j<jI0|W^IcL4(iQvgr_NdW2q_5qCn;R0d;Yy#^5`vQ*wNB|lDtpXkb<pR$F%>d5;aR9gi=>ahU"
    "VF79Z-~<K<`vpn}q6U=!AOUR%%m#J@`U6=3RSDV%ga-uyaRWyMMFQRcMgm?5ZV1Z-"
    "M*@QaLkWil=L5F|cmhHJ1_0s#SODP#SOLQW9SU0p@CWh;>;#<z{{r#_mIVR=^#sfXAq2z(HUqE(+XSr!sQ?xS-"
    "2}D?vIivr_61@A)&lqm!U@C)5(!8N`vx@$X93^=n*yo?V+0!l9RipHO8_wgxe22Ns|Gm(TLH-eQ~<FA+XLnTbp*Bp>j|m>K?x-"
    "U_yvyzFb3%b5d)P3Qv?76bqY@is{#B6dI!%4?E#eu4hmEW(g+I%4Fm!SVhXwfmI3+zNCGecdkUfgvIETlJOzgVw+Uqi@du3rivo85Gyv=XCJFHYu"
    "mcDL{0OoEA_ler6#!oX&;sNLS_Sq8r2>NoN&xu-Vg_6S-"
    "3M+069ZNWc>!euwgM&rX8^1TfB?n_m<KuvYy*M{B?3+bh6u+1Tna`2xCa0TRSFUWN(S5kLj)iMhYA)0<^|*c5CxYBT?$qOZVA5#a0);PQUDbMr2}"
    "0AF$Q1-1p}oAMhL$KMG9R7-2$ftYX(69Hv-cIMFt%S84B+N;Q;so&<MQ&WCIlj$OS3}a|Q_nP6UPnD+OK#gb1?)g9R!Bodxp&2nB2aqyY*5zyKZ!"
    "FbeevbqQbx9}4>c9|)BNu?VjLatL|=MFe08d<Vq<W(cSR0R_JWs|D5t1PQ<c`Ulzo9svpkjs{r@gb6wb-vZbGIs--q-"
    "~jLjOA1>B_W;odp9uN}1_%}iDheV9f(VQQdII|i%K=jbZ2*D*V+lA4kO3e9lK`RtObQ(Xo&d`P)C7J3cnCiQeFiuQ)CXz>5(8%f-"
    "Ut{70Rfc(H3p0VGzSU-"
    "^#N!H6$hXP_W@M`7y$VKuLIZuR0RA4;05CahXrH?lm<5nZ3PPn3In?XasaIbg#t4G1OosAb_fLpW(Ai400M^zQwL)QDFAZ-FaX{H)d1cJod!h(Lj"
    "!~WiU_<3Gz6XrEdmn;qzU8!1p<-"
    ";P5@y9Xa>0j5CrK1j{}efWe4mBsR+ynMh83zK?cqN1PBfY3<x{~^9Sz%*#a;E?+73Wc?hQjlM4L^913j*W(hL{i2)7-<p-"
    "buK?m^zyareVDhMkFKLHB>aRO2ShzWNBKL)1;g9fAkqXpp!eh6v`O9MXu;{u`wVgRlP-v?v_ivU3ag#l~_v;f)yUjdc}DF?O%c?Pus=m7En-"
    "~wd=2?oju!U#tRxCxO34FaqJ3kn(n8U>RCNd!>>%?VclD+wtB%>-"
    "u#PX?C*kqDCq9|BtfJ^%v<ssMii@&O?La|!eWLkfHe^ayVPrwBI)C<iPD(Eua?AqKt%@B=djKm*(f-"
    "3dDb+6GMr`T`UOUIn)U7y}&!`3KMj0SJ%)ya6@{N(xj5PXlZP5d=vAjsg`0rUq9C=Lf?G#0b6#dIMMpWC#TYW(Sc2*#k}jZUI&UyaU7q&IHj0w+1"
    "H&paho)Oang(#RDD*eFqc?qX&!#Pzad>R0in?Xb4dQzy(4ERsr$}-w5{v<pU52T?i@!BL`FiR|6Xb;RKrm7zuL-MFac^KnUdq>IN$azX9_G^af!7"
    "h6F?juLT?gdIU5BLjXbwJO}~=Eddt?dIom~g9x$&p9k{*Fa&)BhzMo^Mhch#=>{4Jss?EViU58D76JPQ!3Wm`xd3hk%>xz!SOxe2CJO5a-"
    "Ub;6E()6oE(i?=paCHTcLuBkSPIAhRtTX8yaz)F69E?iD+Wvi<Of0m@C1(lj|#p61qT8Kp#^3JLI*qtQwF>U?g@hl5dc*I;|SRX+6j*cdjO>Y+Xr"
    "L;9tGY5zX_KFR|ilDB>;2*#Rv5Wc?3xZ{s+tfmH?XvS_nP^^8&p9A_Z#!%m?WJ4+VAuJqbzzF9|COkqJ`*Q3xXhy$I9;rU^|23<C}YCk1Z>`T<u3"
    "r2rHHk^`#)+61}@1_lrU;0S*M?E^;&dk4V@y$5>(8w!X74g+Ti69q^F1qv($iUgGd_XF<*nFzrJqX<w0g$Gy(5ePE{GzDt~pb3l$-"
    "v$%~QVEd;k_JTyMhSxofCFg=iwe>Q*azkZ#|Tab#|P8_?FgU<wg3qUW&s2T8Uc6&<ppj8<_XgW&Ih{*@dgS9=LJ#+6ADTPjRp?}8wu43i3m>$ZU<"
    "cl"
)
